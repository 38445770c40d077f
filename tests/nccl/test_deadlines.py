"""Proves that a call does not wait longer than its time limit for a missing rank but raises an
error that names the operation, after which the others continue without it; and that operations that
end in time do not expire.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support import gpu
from tests.support.blocking import wait_until
from tests.support.capsule import open_capsule
from tests.support.in_world import run_in_world
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.long

_LIMIT = 0.6  # seconds; a wait that ignores it ends with the launch
_LONG = 30.0
_ABSENT = 1
_LIMITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds; on a busy machine the other rank exceeds some


def _grow_without_the_absent(rank: Rank) -> bool:
    """Whether the rank's own limit expired, not that of another rank before."""
    comm = rank.comm
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0, 2)
        comm.abort()
        return False
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)) as raised:
        comm.grow(4, comm.get_unique_id() if rank.rank == 0 else None)
    is_late = isinstance(raised.value, nccl.NcclTimeoutError)
    if is_late:
        raised.match(rf"ncclCommGrow.* on rank {rank.rank} did not complete within {_LIMIT:g} s")
    else:  # the other rank's limit expired first
        raised.match("revoked")
    comm.timeout = _LONG
    with comm.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0, 2])
    rank.set_event("done")
    comm.close()
    return is_late


def test_a_grow_without_a_rank_ends(launch: Launcher) -> None:
    """Other calls are tested in tests/reliability/cells.py, all waits in test_failures.py."""
    assert any(launch(3, _grow_without_the_absent, fresh=True, timeout=40))


def test_all_missing_ranks_are_listed() -> None:
    comms, stream = nccl.Communicator.init_all(12, provider="host"), nccl.Stream("host")
    comms[0].timeout = _LIMIT
    comms[0].all_reduce(np.ones(4), stream=stream)
    with pytest.raises(nccl.NcclTimeoutError, match=r"waited for ranks 1, .* and 11 in") as raised:
        stream.synchronize()
    assert raised.value.missing_ranks == list(range(1, 12))
    for comm in comms:
        comm.abort()


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_a_split_of_a_revoked_communicator_ends(rank: Rank) -> None:
    """NCCL refuses another revocation, which ends the split on CPUs."""
    gpu.require(rank.provider, "ncclCommRevoke")
    comm, called = rank.communicator(1), threading.Event()
    comm.on_timeout = lambda *_: called.set()
    check_works(rank, comm, [0, 1])
    comm.timeout = _LIMIT
    comm.revoke()
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        comm.abort()
        return
    text = f"ncclCommSplit on rank 0 did not complete within {_LIMIT:g} s"
    with pytest.raises(nccl.NcclTimeoutError, match=text):
        comm.split(0)
    assert called.wait(20)
    if rank.provider == "cuda":  # the call is still in NCCL, which uses the handle
        comm.abort()
        assert comm.closed
        rank.set_event("done")
        return
    comm.timeout = _LONG
    with comm.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0])
    rank.set_event("done")
    comm.close()


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize("deleted", [False, True], ids=["closed", "deleted"])
@on_ranks(2, timeout=40)
def test_ending_a_communicator_with_queued_work_has_its_limit(rank: Rank, deleted: bool) -> None:
    comm, stream, array = rank.communicator(), rank.stream(), np.ones(8, np.float32)
    comm.all_reduce(array, nccl.MAX)
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        comm.abort()
        return
    comm.all_reduce(array, nccl.MAX, stream=stream)
    if deleted:
        del comm
        gc.collect()
    else:
        with pytest.raises(nccl.NcclTimeoutError, match=r"all_reduce #2|Finalize|Destroy"):
            comm.close()
    rank.set_event("done")


def test_calls_in_time_do_not_expire() -> None:
    """Pauses longer than the limit, and a call that waits for most of it. On a busy machine the
    other rank may be late. A call that expires then has lasted for the limit.
    """
    for limit in _LIMITS[1:]:
        comms = nccl.Communicator.init_all(2, provider="host")
        comms[0].timeout = limit
        arrays = [np.ones(4), np.ones(4)]
        began = time.monotonic()
        try:
            for delay in (0.0, 0.6 * limit):
                late = threading.Timer(delay, comms[1].all_reduce, [arrays[1]])
                late.start()
                began = time.monotonic()
                comms[0].all_reduce(arrays[0])
                late.join()
                time.sleep(1.3 * limit)
                assert not comms[0].expired
        except nccl.NcclTimeoutError:
            assert time.monotonic() - began >= limit
            for comm in comms:
                comm.abort()
            late.join()
            continue
        assert (arrays[0] == 4).all()
        for comm in comms:
            comm.close()
        return
    raise AssertionError(f"another rank was late within {limit} s")


def test_a_long_queue_does_not_expire(pair: list[nccl.Communicator]) -> None:
    streams, arrays = [nccl.Stream("host") for _ in pair], [np.ones(1000) for _ in pair]
    for comm in pair:
        comm.timeout = 60
    for _ in range(1000):
        for comm, array, stream in zip(pair, arrays, streams, strict=True):
            comm.all_reduce(array, nccl.MAX, stream=stream)
    for stream in streams:
        stream.synchronize()
    wait_until(lambda: pair[0].flight_record()[-1].state == "done")
    assert {record.state for record in pair[0].flight_record()} == {"done"}


@on_ranks(2, by="provider", timeout=300)
def test_operations_without_an_event_do_not_expire(rank: Rank) -> None:
    """On a stream that pynccl does not own, in bursts, with pauses longer than the limit. On a
    busy machine the other rank may be late, but not for each limit.
    """
    for limit in _LIMITS:
        comm, stream = rank.comm.split(0), rank.stream()
        handle = stream.handle
        buffer = rank.memory.put(np.ones(4, np.float32))
        comm.all_reduce(buffer, stream=handle)
        stream.synchronize()
        comm.timeout = limit
        with contextlib.suppress(nccl.NcclTimeoutError, nccl.NcclRemoteError):
            for _ in range(3):
                for _ in range(100):
                    comm.all_reduce(buffer, nccl.MAX, stream=handle)
                time.sleep(1.6 * limit)
        late = rank.memory.put(np.array([comm.expired], np.float32))
        rank.comm.all_reduce(late, nccl.MAX)
        if not rank.memory.get(late)[0]:
            stream.synchronize()
            comm.close()
            return
        comm.abort()
    raise AssertionError(f"operations have expired within {limit} s")


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_the_last_operation_on_a_foreign_stream_expires(rank: Rank) -> None:
    """The monitor cannot record an event on the stream later: it may be destroyed by then."""
    comm = rank.communicator(1)
    capsule = comm.__pynccl_communicator__()
    opened, self = open_capsule(capsule)
    stream = ctypes.c_void_p()
    create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)(
        opened.driver_function(self, b"cuStreamCreateWithPriority")
    )
    synchronize = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(
        opened.driver_function(self, b"cuStreamSynchronize")
    )
    assert create(ctypes.addressof(stream), 1, 0) == 0
    assert stream.value is not None
    buffer = rank.memory.put(np.ones(1000, np.float32))
    for _ in range(4):  # only the first one gets an event
        comm.all_reduce(buffer, nccl.MAX, stream=stream.value)
    comm.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
    else:
        comm.all_reduce(buffer, nccl.MAX, stream=stream.value)
        wait_until(lambda: comm.expired)
        with pytest.raises(nccl.NcclTimeoutError, match="all_reduce #5 "):
            comm.all_reduce(buffer, nccl.MAX, stream=stream.value)
        rank.set_event("done")
    comm.abort()
    synchronize(stream)  # until then the buffer is in use


def test_deadlines_nest_and_are_per_thread(pair: list[nccl.Communicator]) -> None:
    pair[0].timeout = 100
    others: list[nccl.NcclTimeoutError] = []

    def wait_in_another_thread() -> None:
        try:
            pair[0].recv(np.ones(4), 1)
        except nccl.NcclTimeoutError as error:
            others.append(error)

    thread = threading.Thread(target=wait_in_another_thread)
    with nccl.deadline(50), nccl.deadline(0.4), nccl.deadline(60):
        thread.start()
        time.sleep(0.8)
        assert thread.is_alive()  # this thread's limit is not its limit
    pair[1].send(np.ones(4), 0)
    thread.join(20)
    assert not thread.is_alive()
    with (
        nccl.deadline(50),
        nccl.deadline(0.4),
        nccl.deadline(60),
        pytest.raises(nccl.NcclTimeoutError, match=r"within 0\.4 s(: \w|; \w)"),
    ):
        pair[0].recv(np.ones(4), 1)
    assert not others
    scope = nccl.deadline(0.4)
    with scope:
        pass
    with pytest.raises(ValueError, match="it was not entered"):  # the scope has ended
        scope.__exit__(None, None, None)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_limits_are_checked(comm: nccl.Communicator, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"timeout: .* must be above 0 seconds"):
        nccl.Config(timeout=seconds)
    with pytest.raises(ValueError, match=r"timeout: .* must be above 0 seconds"):
        comm.timeout = seconds
    with pytest.raises(ValueError, match=r"seconds: .* must be above 0 seconds"):
        nccl.deadline(seconds)


def test_the_limit_is_inherited_and_has_a_default(comm: nccl.Communicator) -> None:
    assert comm.timeout == 1800
    comm.timeout = None
    assert comm.timeout is None
    for given, seconds in ((7, 7), (float("inf"), None)):
        unique_id, config = nccl.get_unique_id("host"), nccl.Config(timeout=given)
        one = nccl.Communicator(1, unique_id, 0, config=config, provider="host")
        with one, one.split(0) as child:
            assert (one.timeout, child.timeout) == (seconds, seconds)


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in (("12.5", 12.5), ("0", None), ("", 1800)):
        monkeypatch.setenv("PYNCCL_TIMEOUT", value)
        with nccl.Communicator.init_all(1, provider="host")[0] as comm:
            assert comm.timeout == expected
    monkeypatch.setenv("PYNCCL_TIMEOUT", "5 min")
    with pytest.raises(ValueError, match="PYNCCL_TIMEOUT: '5 min'"):
        nccl.Communicator.init_all(1, provider="host")


def _late(dist: ModuleType, rank: int, _nranks: int) -> None:
    import torch

    tensor = torch.ones(4)
    if rank == 1:
        time.sleep(1)
    dist.all_reduce(tensor)
    assert (tensor == 2).all()


def test_the_mirror_uses_the_timeouts_of_its_groups(launch: Launcher, tmp_path: Path) -> None:
    url, env = f"file://{tmp_path}/store", {"PYNCCL_TIMEOUT": "0.3"}
    launch(2, run_in_world, _late, url, {}, (), env=env, timeout=40)


@on_ranks(2, ids=2)
def test_recover_has_its_own_limit(rank: Rank) -> None:
    """The communicator's timeout is shorter than the wait for a late rank."""
    expired: list[object] = []
    config = nccl.Config(timeout=_LIMIT, on_timeout=lambda _comm, error: expired.append(error))
    comm = rank.communicator(1, config=config)
    if rank.rank == 0:
        threading.Timer(2 * _LIMIT, rank.set_event, ["late"]).start()
    rank.wait_event("late", *range(rank.rank))
    with comm.recover(_LONG) as recovered:
        recovered.timeout = _LONG
        check_works(rank, recovered, [0, 1])
    assert not expired
