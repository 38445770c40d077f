"""Proves that the data of a put reaches the target's memory before its signal, for all sizes,
directions and timings; that signals are counted per rank, index and context; that one-sided
operations work in groups, plans and streams, in processes and threads; that wrong arguments write
nothing; and that the programs of docs/one-sided.md behave as the page says.
"""

from __future__ import annotations

import gc
import re
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.blocking import Blocked
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_PAGE = 4096


def _window(comm: nccl.Communicator, nbytes: int) -> tuple[np.ndarray, nccl.Window]:
    buffer = comm.mem_alloc(nbytes)
    return np.from_dlpack(buffer), comm.register_window(buffer)


@on_ranks(1, 2, 3, by="provider")
def test_values_on_streams(rank: Rank) -> None:
    """Repeated puts of each rank to the next."""
    gpu.require(rank.provider, "ncclPutSignal")
    comm, memory, stream = rank.comm, rank.memory, rank.stream()
    following, previous = (rank.rank + 1) % rank.nranks, (rank.rank - 1) % rank.nranks
    own, inbox = comm.mem_alloc(1024, "int32"), comm.mem_alloc(1024, "int32")
    source = comm.register_window(own)  # the source of a put must be in a window, too
    window = comm.register_window(inbox)
    assert source.nbytes == window.nbytes == 4096
    got = memory.put(np.zeros(1024, np.int32))
    for turn in range(10):
        values = memory.put(np.arange(1024, dtype=np.int32) + 100 * rank.rank + turn)
        with nccl.group():  # a copy on the stream, for any memory
            comm.send(values, rank.rank, stream=stream)
            comm.recv(own, rank.rank, stream=stream)
        comm.put_signal(own, following, window, stream=stream)
        comm.wait_signal(previous, stream=stream)
        with nccl.group():
            comm.send(inbox, rank.rank, stream=stream)
            comm.recv(got, rank.rank, stream=stream)
        comm.signal(previous, stream=stream)
        comm.wait_signal(following, stream=stream)
        stream.synchronize()
        wanted = np.arange(1024, dtype=np.int32) + 100 * previous + turn
        assert np.array_equal(memory.get(got), wanted)


def _piece(random: np.random.Generator, size: int) -> tuple[int, int]:
    count = int(random.integers(1, 9 if random.integers(0, 2) else size))
    return count, int(random.integers(0, size - count + 1))


_SIGNALS = nccl.Config(num_rma_ctx=2, num_rma_sig=3)


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(2, by="threads")
def test_data_arrives_before_its_signal(rank: Rank) -> None:
    """Random sizes in both directions at once."""
    comm, peer = rank.communicator(config=_SIGNALS), 1 - rank.rank
    size = 1 << 16
    data, window = _window(comm, 2 * size)
    source, inbox = data[:size].view(np.int64), data[size:].view(np.int64)
    mine = np.random.default_rng(rank.rank)
    theirs = np.random.default_rng(peer)
    for turn in range(1, 10_000 if FULL else 1000):
        count, start = _piece(mine, source.size)
        source[start : start + count] = turn
        comm.put_signal(source[start : start + count], peer, window, size + 8 * start)
        comm.wait_signal(peer)
        count, start = _piece(theirs, inbox.size)
        assert (inbox[start : start + count] == turn).all()
        comm.signal(peer, signal=1)
        comm.wait_signal(peer, signal=1)
    comm.close()


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="threads")
def test_signals_are_counted_separately(rank: Rank) -> None:
    comm = rank.communicator(config=_SIGNALS)
    _, window = _window(comm, _PAGE)
    peers = [peer for peer in range(rank.nranks) if peer != rank.rank]
    for peer in peers:
        for context in range(2):
            for signal in range(3):
                for _ in range(1 + signal + context):
                    comm.signal(peer, signal=signal, context=context)
    # In another order, and with several waits.
    comm.wait_signal(peers, 3, signal=2, context=1)
    comm.wait_signal(peers, signal=2, context=1)
    signals = ((0, 2), (1, 1), (0, 0), (1, 0), (0, 1))
    describe = raw.ncclWaitSignalDesc_t
    comm.wait_signal(
        [
            describe(opCnt=1 + signal + context, peer=peer, sigIdx=signal, ctx=context)
            for context, signal in signals
            for peer in peers
        ]
    )
    # The same descriptor twice means two signals. None of the previous ones is left.
    comm.all_reduce(np.zeros(1))
    comm.wait_signal([])
    comm.wait_signal({})
    signalled = np.zeros(1)
    if rank.rank == 0:
        time.sleep(0.3)
        signalled[:] = time.monotonic()
        for peer in peers:
            comm.signal(peer, signal=1)
            comm.signal(peer, signal=1)
    else:
        comm.wait_signal([0, 0], signal=1)
        ended = time.monotonic()
    comm.all_reduce(signalled, nccl.MAX)
    assert rank.rank == 0 or ended >= signalled[0]
    for signal, context in ((3, 0), (0, 2)):
        for call in (comm.signal, comm.wait_signal):
            with pytest.raises(nccl.NcclInvalidArgumentError, match=r"is not in \[0, [23]\)"):
                call(peers[0], signal=signal, context=context)
    window.close()
    comm.close()


@on_ranks(2, ids=2)
def test_ranks_must_agree_on_signals(rank: Rank) -> None:
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about numRmaCtx and numRmaSig"):
        rank.communicator(config=nccl.Config(num_rma_sig=1 + rank.rank))
    with pytest.raises(nccl.NcclInvalidArgumentError, match="is more than hostnccl's 1024"):
        rank.communicator(1, config=nccl.Config(num_rma_ctx=50, num_rma_sig=50))


def test_one_thread_with_groups_and_a_plan() -> None:
    """Three ranks in one thread, whose groups begin with their waits."""
    nranks = 3
    comms = nccl.Communicator.init_all(nranks, provider="host")
    buffers = [comm.mem_alloc(2 * _PAGE) for comm in comms]
    with nccl.group():
        windows = [comm.register_window(b) for comm, b in zip(comms, buffers, strict=True)]
    arrays = [np.from_dlpack(buffer) for buffer in buffers]

    def step() -> None:
        for rank, comm in enumerate(comms):
            comm.wait_signal({(rank + 1) % nranks: 1, (rank - 1) % nranks: 1})
            comm.signal((rank + 1) % nranks)
            comm.put_signal(arrays[rank][:100], (rank - 1) % nranks, windows[rank], _PAGE)

    with nccl.plan() as plan:
        step()
    assert len(plan) == 3 * nranks
    for turn in range(100):
        for rank, array in enumerate(arrays):
            array[:100] = turn + rank
        if turn % 2:
            plan()
        else:
            with nccl.group():
                step()
        for rank, array in enumerate(arrays):
            assert (array[_PAGE : _PAGE + 100] == turn + (rank + 1) % nranks).all()
            assert not array[_PAGE + 100 :].any()
    windows[1].close()
    with pytest.raises(ValueError, match=r"window: it is closed, and operation \d of 9 uses it"):
        plan()
    for comm in comms:
        comm.close()


def test_a_group_keeps_the_objects_of_a_signal() -> None:
    (comm,) = nccl.Communicator.init_all(1, provider="host")
    _, window = _window(comm, _PAGE)  # signals need one
    stream = nccl.Stream("host")
    users = [weakref.ref(comm), weakref.ref(stream)]
    with nccl.group():
        comm.signal(0, stream=stream)
        comm.wait_signal(0, stream=stream)
        del comm, window, stream
        gc.collect()
        assert all(user() is not None for user in users)


@on_ranks(2)
def test_waiting_on_a_stream(rank: Rank) -> None:
    """It blocks the stream, not the caller."""
    comm, peer, stream = rank.comm, 1 - rank.rank, rank.stream()
    data, window = _window(comm, 2 * _PAGE)
    event = rank.event()
    if rank.rank == 0:
        comm.wait_signal(peer, stream=stream)
        event.record(stream)
        assert not event.query()
        rank.set_event("waits")
        stream.synchronize()
        assert (data[_PAGE:] == 7).all()
    else:
        rank.wait_event("waits", 0)
        data[:_PAGE] = 7
        comm.put_signal(data[:_PAGE], peer, window, _PAGE, stream=stream)
        stream.synchronize()
    comm.all_reduce(np.zeros(1), stream=stream)
    stream.synchronize()


@on_ranks(3)
def test_waiting_uses_no_cpu(rank: Rank) -> None:
    _, window = _window(rank.comm, _PAGE)
    assert window.handle
    if rank.rank == 0:
        time.sleep(2)
        for peer in range(1, rank.nranks):
            rank.comm.signal(peer)
        return
    before = time.process_time()
    rank.comm.wait_signal(0)
    assert time.process_time() - before < 0.2


_DESCRIPTOR = raw.ncclWaitSignalDesc_t(opCnt=0)


@on_ranks(2, ids=2)
def test_mistakes_write_nothing(rank: Rank) -> None:
    comm, peer = rank.comm, 1 - rank.rank
    other = rank.communicator(1)
    for call in (comm.signal, comm.wait_signal):
        text = "before a symmetric window was registered"
        with pytest.raises(nccl.NcclInvalidUsageError, match=text):
            call(peer)
    buffer = comm.mem_alloc((2 if rank.rank else 1) * _PAGE)
    data = np.from_dlpack(buffer)
    data[:] = 9
    window, foreign = comm.register_window(buffer), other.register_window(buffer)
    closed = comm.register_window(comm.mem_alloc(_PAGE))
    closed.close()
    ten, outside = data[:10], np.zeros(10, np.uint8)
    room = (1 if rank.rank else 2) * _PAGE
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (TypeError, "missing required argument 'window'", lambda: comm.put_signal(ten, peer)),
        (TypeError, "window: .*3", lambda: comm.put_signal(ten, peer, 3)),
        (ValueError, "window: it is closed", lambda: comm.put_signal(ten, peer, closed)),
        (ValueError, "another communicator", lambda: comm.put_signal(ten, peer, foreign)),
        (ValueError, "peer: rank 2 is out of range", lambda: comm.put_signal(ten, 2, window)),
        (ValueError, "offset: -1", lambda: comm.put_signal(ten, peer, window, -1)),
        (ValueError, "signal: -1", lambda: comm.put_signal(ten, peer, window, signal=-1)),
        (ValueError, "context: -2", lambda: comm.signal(peer, context=-2)),
        (TypeError, "tensor", lambda: comm.put_signal("ten", peer, window)),
        (TypeError, "stream", lambda: comm.signal(peer, stream="s")),
        (ValueError, "peer: rank -1 is out of range", lambda: comm.signal(-1)),
        (ValueError, "peers: rank 5 is out of range", lambda: comm.wait_signal([0, 5])),
        (ValueError, "0 signals, must be at least 1", lambda: comm.wait_signal(peer, 0)),
        (ValueError, "-1 signals, must be at least 1", lambda: comm.wait_signal({peer: -1})),
        (TypeError, "peers: .*'all'", lambda: comm.wait_signal("all")),
        (TypeError, "peers: .*1.5", lambda: comm.wait_signal([1.5])),
        (ValueError, "peers: a descriptor has opCnt=0", lambda: comm.wait_signal([_DESCRIPTOR])),
        (ValueError, "registered memory only", lambda: comm.put_signal(outside, peer, window)),
        (ValueError, "has no elements", lambda: comm.put_signal(data[:0], peer, window)),
    ]
    for offset in (room - 9, room, room + 1, 2**63):
        text = f"end after the window of rank {peer}, which has {room} bytes"
        wrong.append((ValueError, text, partial(comm.put_signal, ten, peer, window, offset)))
    for kind, message, mistake in wrong:
        with pytest.raises(kind, match=message):
            mistake()
        with pytest.raises(kind, match=message), nccl.group():  # noqa: PT012
            comm.put_signal(ten, peer, window)
            mistake()
    comm.all_reduce(np.zeros(1))
    assert (data == 9).all()
    # All calls were refused, so these are the first signals.
    comm.put_signal(ten, peer, window, room - 10)
    comm.wait_signal(peer)
    comm.signal(peer)
    comm.wait_signal(peer)
    other.close()
    with pytest.raises(ValueError, match="communicator: it is closed"):
        other.put_signal(ten, peer, window)
    with pytest.raises(ValueError, match="communicator: it is closed"):
        other.wait_signal([])


@on_ranks(2)
def test_signals_without_a_window(rank: Rank) -> None:
    with rank.communicator(config=nccl.Config(rma_eager_init=1)) as comm:
        comm.signal(1 - rank.rank)
        comm.wait_signal(1 - rank.rank)


_OLD_NCCL = """
#include <stdint.h>
#include <stdlib.h>
int ncclGetLastError(void* comm) { return 0; }
int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }
int ncclMemAlloc(void** memory, size_t size) { return posix_memalign(memory, 4096, size) != 0; }
int ncclMemFree(void* memory) { free(memory); return 0; }
"""
_WINDOWS = """
int ncclCommWindowRegister(void* c, void* b, size_t s, void** w, int f) { *w = NULL; return 0; }
int ncclPutSignal(void) { return 0; }
"""


def test_an_nccl_that_returns_no_window(tmp_path: Path) -> None:
    """NCCL returns success and no handle if it cannot share memory between the ranks."""
    path = compile_nccl(tmp_path, 22907, _OLD_NCCL + _WINDOWS, with_communicators=True)
    with nccl.Communicator(1, bytes(128), 0, provider=path) as comm:
        buffer = comm.mem_alloc(4096)
        with comm.register_window(buffer, strict_ordering=True) as window:
            assert window.handle == 0
            with pytest.raises(ValueError, match="window: NCCL cannot share this memory"):
                comm.put_signal(buffer, 0, window)
            for name in ("signal", "context"):
                text = f"{name}: 1 needs NCCL 2.31.0, the loaded one is 2.29.7 and has only 0"
                with pytest.raises(ValueError, match=text):
                    comm.put_signal(buffer, 0, window, **{name: 1})
        with pytest.raises(ValueError, match=r"gin_only: needs NCCL 2.32.0, .* 2.29.7"):
            comm.register_window(buffer, gin_only=True)


# The programs of the page

_DOCUMENT = Path(__file__).parents[2] / "docs" / "one-sided.md"
_BLOCK = re.compile(r"^```python\n# (wrong|right)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The outcome of the wrong program of a rule: the text of its ValueError, or a wait.
_WAITS = "waits"
_WRONG = {
    "Equal offsets within the allocation on all ranks": "0 bytes .* 4096 bytes",
    "One open window per address": "begins at the same address",
    "The same open windows on all ranks at registration": "different windows open",
    "Non-empty puts within the window of the peer": "end after the window of rank",
    "The source of a put in a symmetric window of the same communicator": "is not in a symm",
    "Completion of all puts before memory is reused": "",  # not checked
    "Puts before waits": _WAITS,
    "One-sided operations first in a group": _WAITS,
    "Separate counts for signals of captured operations": _WAITS,
    "One signal in flight per peer in a graph": _WAITS,
}


def _programs() -> dict[str, dict[str, str]]:
    """The programs of each rule: {"wrong": ..., "right": ...}."""
    sections = re.split(r"^### (.*)$", _DOCUMENT.read_text(), flags=re.MULTILINE)[1:]
    return {
        rule: dict(_BLOCK.findall(text))
        for rule, text in zip(sections[::2], sections[1::2], strict=True)
    }


_PROGRAMS = _programs()


def test_every_rule_has_both_programs() -> None:
    assert _PROGRAMS.keys() == _WRONG.keys()
    assert all(programs.keys() == {"wrong", "right"} for programs in _PROGRAMS.values())


def _names(rank: Rank) -> dict[str, Any]:
    """The names that the programs use."""
    comm = rank.comm
    buffer = comm.mem_alloc(2 * _PAGE)
    whole = np.from_dlpack(buffer)
    whole[:] = 10 + rank.rank
    return {
        "nccl": nccl, "np": np, "comm": comm, "rank": rank.rank, "peer": 1 - rank.rank,
        "buffer": buffer, "window": comm.register_window(buffer), "data": whole[:8],
        "stream": rank.stream(), "whole": whole,
    }  # fmt: skip


@pytest.mark.parametrize("rule", _PROGRAMS)
@on_ranks(2, timeout=30)
def test_right_programs(rank: Rank, rule: str) -> None:
    program = _PROGRAMS[rule]["right"]
    names = _names(rank)
    exec(program, names)
    names["stream"].synchronize()
    whole = names["whole"]
    if "window, 4096" in program and "buffer.close" not in program:
        expected = 0 if "data[:] = 0" in program else 11 - rank.rank
        assert (whole[_PAGE : _PAGE + 8] == expected).all()
        assert (whole[_PAGE + 8 :] == 10 + rank.rank).all()


@pytest.mark.parametrize("rule", [rule for rule, outcome in _WRONG.items() if outcome])
@on_ranks(2, timeout=30)
def test_wrong_programs(rank: Rank, rule: str) -> None:
    program, outcome = _PROGRAMS[rule]["wrong"], _WRONG[rule]
    names = _names(rank)
    if outcome != _WAITS:
        with pytest.raises(ValueError, match=outcome):
            exec(program, names)
        return

    def wait() -> None:
        exec(program, names)
        names["stream"].synchronize()

    waiting = Blocked(wait)
    waiting.wait()
    rank.comm.abort()
    waiting.end()
