"""Proves that ranks that compare their collectives (Config.check) get an error that describes the
difference before anything is sent, and continue with the same communicator; and what is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from pynccl._internal.comparison import Call, differences
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.store import FolderStore

_ODD = 1
_Call = Callable[[nccl.Communicator, Callable[[int, str], Any], nccl.Stream], object]


def _all_reduce(count: int = 4, dtype: str = "f4", op: nccl.RedOp = nccl.SUM) -> _Call:
    return lambda c, put, s: c.all_reduce(put(count, dtype), op, stream=s)


def _group(comm: nccl.Communicator, put: Callable[[int, str], Any], s: nccl.Stream) -> None:
    with nccl.group():
        comm.all_reduce(put(4, "f4"), stream=s)
        comm.all_reduce(put(4 + comm.rank % 2, "f4"), stream=s)


def _plan(comm: nccl.Communicator, put: Callable[[int, str], Any], s: nccl.Stream) -> None:
    with nccl.plan() as step:
        comm.all_reduce(put(4 + comm.rank % 2, "f4"), stream=s)
    step()


# The call of the ranks, that of rank 1 instead, and the text of the error.
_MISMATCHES: dict[str, tuple[_Call, _Call, str]] = {
    "count": (
        _all_reduce(),
        _all_reduce(5),
        r"ranks 0, 2 all_reduce\(float32, count=4, sum\); rank 1 all_reduce\(float32, count=5, sum",
    ),
    "dtype": (
        _all_reduce(),
        _all_reduce(dtype="i4"),
        r"ranks 0, 2 all_reduce\(float32, .*rank 1 all_reduce\(int32, ",
    ),
    "op": (
        _all_reduce(),
        _all_reduce(op=nccl.MAX),
        r"ranks 0, 2 all_reduce\(.*, sum\); rank 1 all_reduce\(.*, max\)",
    ),
    "root": (
        lambda c, put, s: c.broadcast(put(4, "f4"), 0, stream=s),
        lambda c, put, s: c.broadcast(put(4, "f4"), 2, stream=s),
        r"ranks 0, 2 broadcast\(.*root=0\); rank 1 broadcast\(.*root=2\)",
    ),
    "collective": (
        _all_reduce(),
        lambda c, put, s: c.reduce(put(4, "f4"), 0, stream=s),
        r"ranks 0, 2 all_reduce\(.*; rank 1 reduce\(",
    ),
    "group": (_group, _group, r"ranks 0, 2 all_reduce\(.*count=4.*count=4.*; rank 1 .*count=5"),
    "plan": (_plan, _plan, r"ranks 0, 2 all_reduce\(.*count=4, .*; rank 1 all_reduce\(.*count=5"),
}


@pytest.mark.parametrize("what", _MISMATCHES)
@on_ranks(3, by="provider", timeout=60)
def test_a_mismatch_is_named_on_every_rank(rank: Rank, what: str, tmp_path: Path) -> None:
    config = nccl.Config(check="every", timeout=20)
    comm = rank.communicator(0, config=config, store=FolderStore(tmp_path))
    memory, stream = rank.memory, rank.stream()
    x = memory.put(np.ones(4, np.float32))
    comm.all_reduce(x, stream=stream)
    calls = _MISMATCHES[what]
    call = calls[rank.rank == _ODD]
    text = f"check on rank {rank.rank}: the ranks call different collectives as #2: {calls[2]}"
    for _ in range(2):  # nothing was sent, so the call can be repeated
        with pytest.raises(nccl.NcclInvalidUsageError, match=text):
            call(comm, lambda count, dtype: memory.put(np.ones(count, dtype)), stream)
    comm.all_reduce(x, stream=stream)
    with comm.split(0) as child:
        child.all_reduce(x, stream=stream)
        stream.synchronize()
    assert (memory.get(x) == 27).all()
    assert [record.number for record in comm.flight_record()] == [1, 2]
    comm.close()


def _connect(rank: Rank, comm: nccl.Communicator) -> None:
    """NCCL's first message in a direction waits for the other rank's call."""
    x, y, stream = rank.memory.put(np.ones(1)), rank.memory.put(np.ones(1)), rank.stream()
    with nccl.group():
        comm.send(x, 1 - rank.rank, stream=stream)
        comm.recv(y, 1 - rank.rank, stream=stream)
    stream.synchronize()


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_every_third_is_compared(rank: Rank, tmp_path: Path) -> None:
    """On a stream that waits for a message, so that the engine does not compare them first."""
    comm = rank.communicator(
        0, config=nccl.Config(check=3, timeout=30), store=FolderStore(tmp_path)
    )
    memory, stream = rank.memory, rank.stream()
    x, y = memory.put(np.ones(4, np.float32)), memory.put(np.ones(4, np.float32))
    other = rank.communicator(1)
    _connect(rank, other)
    other.recv(y, 1 - rank.rank, stream=stream)
    for number in range(1, 6):
        odd = rank.rank == _ODD and number == 5
        comm.all_reduce(x, nccl.MAX if odd else nccl.SUM, stream=stream)
        with nccl.group():  # messages are counted separately
            comm.send(x, 1 - rank.rank, stream=stream)
            comm.recv(y, 1 - rank.rank, stream=stream)
    text = r"as #5: rank 0 all_reduce\(.*, sum\); rank 1 all_reduce\(.*, max\)"
    with pytest.raises(nccl.NcclInvalidUsageError, match=text):
        comm.all_reduce(x, stream=stream)
    comm.abort()
    other.abort()
    with contextlib.suppress(nccl.NcclError):
        stream.synchronize()  # x is used until then


@pytest.mark.parametrize("receives_first", [False, True])
@on_ranks(2, by="provider", timeout=40)
def test_a_message_that_differs(rank: Rank, tmp_path: Path, receives_first: bool) -> None:
    """The rank that calls second gets an error, and the right call then completes both."""
    config = nccl.Config(check="every", timeout=30)
    comm = rank.communicator(0, config=config, store=FolderStore(tmp_path))
    memory, stream, peer = rank.memory, rank.stream(), 1 - rank.rank
    x = memory.put(np.full(5, 1 + rank.rank, np.float32))
    small = memory.put(np.ones(4, np.float32))
    calls = {"send": comm.send, "recv": comm.recv}
    first, second = ("recv", "send") if receives_first else ("send", "recv")
    store = FolderStore(tmp_path)
    _connect(rank, comm)
    for number in (2, 3):
        if rank.rank == 0:
            calls[first](x, peer, stream=stream)
            store.set(f"called {number}", "")
            continue
        store.get(f"called {number}")
        source = 1 if receives_first else 0
        text = (
            rf"check on rank 1: message #{number} from rank {source} to rank {1 - source}: this "
            rf"rank calls {second}\(float32, count=4\), rank 0 {first}\(float32, count=5\); this "
        )
        with pytest.raises(nccl.NcclInvalidUsageError, match=text):
            calls[second](small, peer, stream=stream)
        calls[second](x, peer, stream=stream)
    stream.synchronize()
    assert (memory.get(x) == (2 if receives_first else 1)).all()
    comm.close()


def _messages_in_a_group(rank: Rank, folder: Path) -> bool:
    """Both ranks send one that differs; no rank can complete the group."""
    config = nccl.Config(check="every")
    comm = rank.communicator(0, config=config, store=FolderStore(folder))
    comm.timeout = 3  # the first call of a busy machine takes long
    memory, stream, peer = rank.memory, rank.stream(), 1 - rank.rank
    one, other = (memory.put(np.ones(4 + rank.rank * i, np.int32)) for i in (0, 1))
    ends = [memory.put(np.ones(4, np.int32)) for _ in range(2)]
    try:
        with nccl.group():
            comm.send(one, peer, stream=stream)
            comm.send(other, peer, stream=stream)
            for end in ends:
                comm.recv(end, peer, stream=stream)
        stream.synchronize()
        if error := comm.async_error():
            raise error
    except nccl.NcclError as error:
        comm.abort()
        return "message #2 from rank 1 to rank 0" in str(error)
    raise AssertionError("it did not raise")


def test_messages_in_a_group(launch: Launcher, provider: str, tmp_path: Path) -> None:
    assert any(launch(2, _messages_in_a_group, tmp_path, provider=provider, timeout=40))


@on_ranks(2, timeout=40)
def test_numbers_of_operators_may_differ(rank: Rank, tmp_path: Path) -> None:
    config = nccl.Config(check="every", timeout=20)
    comm = rank.communicator(0, config=config, store=FolderStore(tmp_path))
    for _ in range(1 + rank.rank):  # hostnccl numbers the operators of a process
        op = comm.pre_mul_sum(0.5, "float32")
    x = np.ones(4, np.float32)
    for _ in range(2):
        comm.all_reduce(x, op)
    assert (x == 1).all()
    comm.close()


@on_ranks(3, ids=2, timeout=40)
def test_a_grown_communicator(rank: Rank, tmp_path: Path) -> None:
    store, config = FolderStore(tmp_path), nccl.Config(check="every", timeout=20)
    if rank.rank < 2:
        comm = nccl.Communicator(
            2, rank.unique_ids[1], rank.rank, config=config, provider="host", store=store
        )
        unique_id = comm.get_unique_id() if rank.rank == 1 else None
        if unique_id:
            store.set("id", bytes(unique_id).hex())
        grown = comm.grow(3, unique_id)
    else:
        joined = bytes.fromhex(store.get("id").decode())
        grown = nccl.Communicator.join(3, joined, 2, config=config, provider="host", store=store)
    grown.all_reduce(np.ones(4))
    text = r"as #2: ranks 0, 1 all_reduce\(.*count=4, .*; rank 2 all_reduce\(.*count=5"
    with pytest.raises(nccl.NcclInvalidUsageError, match=text):
        grown.all_reduce(np.ones(5 if rank.rank == 2 else 4))
    grown.all_reduce(np.ones(4))
    if rank.rank == 2:
        grown.send(np.ones(4), 0)
        store.set("sent", "")
    if rank.rank == 0:
        store.get("sent")
        with pytest.raises(nccl.NcclInvalidUsageError, match="message #1 from rank 2 to rank 0"):
            grown.recv(np.ones(5), 2)
        grown.recv(np.ones(4), 2)
    grown.abort()


def _reduce_without_a_rank(rank: Rank, folder: Path) -> list[int] | None:
    """Return the missing ranks."""
    config = nccl.Config(check="every", timeout=0.5)
    comm = rank.communicator(0, config=config, store=FolderStore(folder))
    missing = None
    if rank.rank != _ODD:
        text = r"check: (rank 1|ranks 1, 2|ranks 0, 1) did not reach the comparison of #1 "
        with pytest.raises(
            nccl.NcclTimeoutError, match=text + r"all_reduce\(.*\) within 0\.5 s"
        ) as raised:
            comm.all_reduce(np.ones(4, np.float32))
        missing = raised.value.missing_ranks
    comm.abort()
    return missing


def test_a_missing_rank_is_named(launch: Launcher, tmp_path: Path) -> None:
    """On a busy machine, the other one may reach it too late for one of the two ranks."""
    found = launch(3, _reduce_without_a_rank, tmp_path, timeout=40)
    assert [_ODD] in found
    assert all(missing is None or _ODD in missing for missing in found)


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_calls_that_cannot_be_issued_are_not_compared(rank: Rank, tmp_path: Path) -> None:
    """The other rank does not call it, so a comparison would expire."""
    config = nccl.Config(check="every", timeout=3)
    comm = rank.communicator(0, config=config, store=FolderStore(tmp_path))
    other = rank.communicator(1)
    x, y = (rank.memory.put(np.ones(4, np.float32)) for _ in range(2))
    stream = rank.stream()
    with nccl.plan() as step:
        comm.all_reduce(x, stream=stream)
        other.all_reduce(y, stream=stream)
    other.close()
    if rank.rank == 0:
        with pytest.raises(ValueError, match="operation 2 of 2 uses it; nothing was issued"):
            step()
        assert not comm.expired
    comm.abort()


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_a_group_of_two_communicators(rank: Rank, tmp_path: Path) -> None:
    """In another order on each rank, with messages."""
    store = FolderStore(tmp_path)
    config = nccl.Config(check=1)
    comms = [rank.communicator(i, config=config, store=store) for i in (0, 1)]
    memory, stream = rank.memory, rank.stream()
    x, y, sent, z = (memory.put(np.ones(4, np.float32)) for _ in range(4))
    calls = [(comms[0], x), (comms[1], y)]
    with nccl.group():
        for comm, array in calls if rank.rank == 0 else reversed(calls):
            comm.all_reduce(array, stream=stream)
        comms[0].send(sent, 1 - rank.rank, stream=stream)
        comms[0].recv(z, 1 - rank.rank, stream=stream)
    stream.synchronize()
    assert (memory.get(y) == 2).all()
    for comm in comms:
        comm.close()


_SUM = "all_reduce(float32, count=4, sum)"
_MAX = "all_reduce(float32, count=4, max)"


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ({0: Call(5, _SUM, [], 1), 1: Call(5, _SUM, [], 1)}, ""),
        (
            {
                0: Call(6, _SUM, [(4, _SUM), (5, _MAX)], 1),
                1: Call(6, _SUM, [(4, _SUM), (5, _SUM)], 2),
            },
            f"the ranks call different collectives as #5: rank 0 {_MAX}; rank 1 {_SUM}",
        ),
        (
            {0: Call(5, _SUM, [], 1), 1: Call(6, _SUM, [], 2), 2: Call(5, _SUM, [], 1)},
            f"the ranks have called different numbers of collectives: ranks 0, 2 #5 {_SUM}; "
            f"rank 1 #6 {_SUM}",
        ),
        (
            {0: Call(5, _SUM, [], 1), 1: Call(5, _SUM, [], 2)},
            "the ranks have called different collectives before #5, by their fingerprints: rank 0 "
            f"{1:016x}; rank 1 {2:016x}",
        ),
    ],
)
def test_how_calls_differ(calls: dict[int, Call], text: str) -> None:
    assert differences(calls) == text


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="check: 0 is below 1"):
        nccl.Config(check=0)
    with pytest.raises(TypeError, match="check: expected 'every' or an integer, got 'some'"):
        nccl.Config(check="some")
    assert nccl.Config(check="every").check == 1
    unique_id, config = nccl.get_unique_id("host"), nccl.Config(check=2)
    with pytest.raises(ValueError, match="check: the ranks need a store to compare"):
        nccl.Communicator(1, unique_id, 0, config=config, provider="host")


def _alone(store: FolderStore) -> nccl.Communicator:
    return nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host", store=store)


@pytest.mark.parametrize(
    ("value", "compares"), [("every", True), ("1", True), ("2", False), ("", False)]
)
def test_the_environment_sets_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, compares: bool
) -> None:
    monkeypatch.setenv("PYNCCL_CHECK", value)
    with _alone(FolderStore(tmp_path)) as comm:
        comm.all_reduce(np.ones(4))
    assert any("check" in path.name for path in tmp_path.iterdir()) == compares
    monkeypatch.setenv("PYNCCL_CHECK", "x")
    with pytest.raises(ValueError, match="PYNCCL_CHECK: 'x' is"):
        _alone(FolderStore(tmp_path))
