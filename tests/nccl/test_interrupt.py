"""Proves that Ctrl-C ends every wait of the main thread on CPUs, and on GPUs those for streams and
events, with a KeyboardInterrupt, within 0.2 seconds on an idle machine, that the other ranks are
notified, and that a signal handler that does not raise leaves the wait alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support import gpu
from tests.support.blocking import interrupt_when_blocked, wait_until_blocked
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_SOON = 0.2  # seconds
_ATTEMPTS = 10
Wait = Callable[[nccl.Communicator, np.ndarray, nccl.Stream], object]


def _queued(comm: nccl.Communicator, array: np.ndarray, stream: nccl.Stream) -> nccl.Stream:
    comm.all_reduce(array, stream=stream)
    return stream


def _exchange(comm: nccl.Communicator, array: np.ndarray, _stream: nccl.Stream) -> None:
    with nccl.group():
        comm.send(array, 1)
        comm.recv(np.ones_like(array), 1)


def _event(comm: nccl.Communicator, array: np.ndarray, stream: nccl.Stream) -> None:
    event = nccl.Event("host")
    event.record(_queued(comm, array, stream))
    event.synchronize()


def _finalize(comm: nccl.Communicator, array: np.ndarray, stream: nccl.Stream) -> None:
    _queued(comm, array, stream)
    comm.finalize()


def _close(comm: nccl.Communicator, array: np.ndarray, stream: nccl.Stream) -> None:
    _queued(comm, array, stream)
    comm.close()
    time.sleep(0.01)  # the exception is raised between two instructions


def _init(nranks: int, rank: int) -> Wait:
    return lambda *_: nccl.Communicator(nranks, nccl.get_unique_id("host"), rank, provider="host")


# Each wait, and whether it belongs to the communicator, which is revoked then.
_WAITS: dict[str, tuple[Wait, bool]] = {
    "all_reduce": (lambda comm, array, _: comm.all_reduce(array), True),
    "recv": (lambda comm, array, _: comm.recv(array, 1), True),
    "send": (lambda comm, *_: comm.send(np.ones(1 << 20), 1), True),
    "group": (_exchange, True),
    "split": (lambda comm, *_: comm.split(0), True),
    "init": (_init(2, 0), False),
    "init of the second": (_init(3, 1), False),
    "synchronize": (lambda *given: _queued(*given).synchronize(), False),
    "event": (_event, False),
    "finalize": (_finalize, True),
    "close": (_close, True),
    "suspend": (lambda comm, *_: comm.suspend(), True),
}


def _interrupted(wait: Wait) -> tuple[float, bool]:
    """The delay of the interruption, and whether the communicator is revoked then."""
    comms = nccl.Communicator.init_all(2, provider="host")
    array, stream = np.ones(4), nccl.Stream("host")
    sent = interrupt_when_blocked()
    with pytest.raises(KeyboardInterrupt):
        wait(comms[0], array, stream)
    found = time.monotonic() - sent[0], comms[0].revoked
    for comm in comms:
        comm.abort()
    return found


@on_ranks(1, fresh=True)
def test_waits_are_interrupted(rank: Rank) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    for what, (wait, revokes) in _WAITS.items():
        assert _interrupted(wait)[1] == revokes, what


@pytest.mark.serial
@on_ranks(1, fresh=True)
def test_waits_are_interrupted_soon(rank: Rank) -> None:
    """Each in one of several attempts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for what, (wait, _) in _WAITS.items():
        assert any(_interrupted(wait)[0] < _SOON for _ in range(_ATTEMPTS)), what


@on_ranks(1, fresh=True)
def test_a_handler_runs_while_the_call_waits(rank: Rank) -> None:
    comms = nccl.Communicator.init_all(2, provider="host")
    arrays, calls = [np.ones(4), np.ones(4)], []
    called, in_time = threading.Semaphore(0), []

    def handle(*_: object) -> None:
        calls.append(threading.current_thread())
        called.release()

    def interrupt() -> None:
        wait_until_blocked(threading.main_thread())
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGALRM)
            in_time.append(called.acquire(timeout=20))
        comms[1].all_reduce(arrays[1])

    signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    comms[0].all_reduce(arrays[0])
    thread.join()
    assert in_time == [True, True]
    assert calls == [threading.main_thread()] * 2
    assert (arrays[0] == 2).all()
    for comm in comms:
        comm.close()


@pytest.mark.parametrize("grouped", [False, True])
@on_ranks(1, fresh=True)
def test_a_handler_may_run_operations(rank: Rank, grouped: bool) -> None:
    """On another communicator, while the main thread waits in an operation or a group."""
    comms = nccl.Communicator.init_all(2, provider="host")
    alone = nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host")
    arrays = [np.ones(4), np.ones(4)]
    handled = threading.Event()

    def scope() -> contextlib.AbstractContextManager[object]:
        return nccl.group() if grouped else contextlib.nullcontext()

    def handle(*_: object) -> None:
        with scope():
            for count in (4, 5):
                alone.all_reduce(np.ones(count))
        handled.set()

    def interrupt() -> None:
        interrupt_when_blocked(signal.SIGALRM)
        handled.wait(20)
        comms[1].all_reduce(arrays[1])

    signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with scope():
        comms[0].all_reduce(arrays[0])
    thread.join()
    assert handled.is_set()
    assert (arrays[0] == 2).all()
    for comm in (*comms, alone):
        comm.close()


@on_ranks(1, fresh=True)
def test_a_handler_that_waits_for_the_operation_that_it_interrupts(rank: Rank) -> None:
    comms = nccl.Communicator.init_all(2, provider="host")
    deadlock, errors = "deadlock: this process waits for its own work", []

    def handle(*_: object) -> None:
        with pytest.raises(nccl.NcclInvalidUsageError, match=deadlock) as caught:
            comms[0].all_reduce(np.ones(4))
        errors.append(caught)

    signal.signal(signal.SIGALRM, handle)
    interrupt_when_blocked(signal.SIGALRM)
    with pytest.raises(nccl.NcclInvalidUsageError, match=deadlock):
        comms[0].all_reduce(np.ones(4))
    assert errors
    for comm in comms:
        comm.abort()


@on_ranks(1, fresh=True)
def test_a_handler_may_revoke_the_communicator(rank: Rank) -> None:
    """Of the operation in which the main thread waits, which ends after the handler."""
    comms = nccl.Communicator.init_all(2, provider="host")
    signal.signal(signal.SIGALRM, lambda *_: comms[0].revoke())
    interrupt_when_blocked(signal.SIGALRM)
    with pytest.raises(nccl.NcclInvalidUsageError, match="revoked"):
        comms[0].all_reduce(np.ones(4))
    for comm in comms:
        comm.abort()


@on_ranks(1, fresh=True)
def test_all_branches_of_a_graph_end(rank: Rank) -> None:
    """Although only the first one runs in the interrupted thread. The other ranks are notified."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comms = [nccl.Communicator.init_all(2, provider="host") for _ in range(2)]
    first, second = nccl.Stream("host"), nccl.Stream("host")
    begun, reduced, joined = (nccl.Event("host") for _ in range(3))
    with nccl.capture(first) as graph:
        begun.record(first)
        second.wait(begun)
        comms[0][0].all_reduce(np.ones(4))
        reduced.record(first)
        second.wait(reduced)
        comms[1][0].all_reduce(np.ones(4), stream=second)
        joined.record(second)
        first.wait(joined)
    interrupt_when_blocked()
    with pytest.raises(KeyboardInterrupt):
        graph.launch(0)
    for one, other in comms:
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 .*interrupted"):
            other.all_reduce(np.ones(4))
        one.abort()
        other.abort()


@on_ranks(1, fresh=True)
def test_shrink_with_abort_waits_for_the_operations_that_it_ends(rank: Rank) -> None:
    """The caller may then free their buffers. One is blocked in a signal handler meanwhile."""
    comms = nccl.Communicator.init_all(2, provider="host")
    entered, shrunk, early = threading.Event(), threading.Event(), []

    def handle(*_: object) -> None:
        entered.set()
        early.append(shrunk.wait(1))

    def shrink() -> None:
        interrupt_when_blocked(signal.SIGALRM)
        entered.wait(20)
        smaller = comms[0].shrink([1], abort=True)
        shrunk.set()
        smaller.close()

    signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=shrink)
    thread.start()
    with contextlib.suppress(nccl.NcclError):
        comms[0].all_reduce(np.ones(4))
    thread.join()
    assert early == [False]
    assert shrunk.is_set()
    for comm in comms:
        comm.abort()


@on_ranks(3, fresh=True)
def test_the_other_ranks_are_notified(rank: Rank) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm, array = rank.comm, np.ones(4)
    comm.all_reduce(array)
    if rank.rank == 1:
        rank.wait_event("done", 0, 2)
    elif rank.rank == 0:
        interrupt_when_blocked()
    errors = (KeyboardInterrupt, nccl.NcclRemoteError)
    text = r"^$" if rank.rank == 0 else r"rank 0 \(pid .* was interrupted by a signal"
    with pytest.raises(errors[rank.rank > 0], match=text):
        comm.all_reduce(array)
    if rank.rank != 1:
        with comm.shrink([1], abort=True) as smaller:
            check_works(rank, smaller, [0, 2])
        rank.set_event("done")


@contextlib.contextmanager
def _interrupted_beside_an_operation(
    rank: Rank, stream: nccl.Stream
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Rank 1 is late for an operation on the stream. The block gets a function that has a wait of
    rank 0 interrupted. The enqueued work is complete after the block.
    """
    comm, x = rank.comm, rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        rank.wait_event("interrupted", 0)
    comm.all_reduce(x, stream=stream)

    def interrupt(wait: Callable[[], None]) -> None:
        if rank.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            interrupt_when_blocked(signal.SIGALRM)
            with pytest.raises(KeyboardInterrupt):
                wait()
            rank.set_event("interrupted")

    yield interrupt
    stream.synchronize()
    assert (rank.memory.get(x) == 4).all()


@pytest.mark.parametrize("on_event", [False, True])
@on_ranks(2, by="provider")
def test_a_wait_for_a_stream_is_interrupted(rank: Rank, on_event: bool) -> None:
    stream, event = rank.stream(), rank.event()
    with _interrupted_beside_an_operation(rank, stream) as interrupt:
        event.record(stream)
        interrupt(event.synchronize if on_event else stream.synchronize)
    rank.comm.close()


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_closing_a_window_is_interrupted(rank: Rank) -> None:
    """The wait is for the device. The window stays open."""
    gpu.require(rank.provider, "ncclCommWindowRegister")
    buffer = rank.comm.mem_alloc(4096)
    window = rank.comm.register_window(buffer)
    with _interrupted_beside_an_operation(rank, rank.stream()) as interrupt:
        interrupt(window.close)
        assert not window.closed
    window.close()
    rank.comm.close()


@on_ranks(2, by="provider")
def test_the_registration_of_a_window_is_interrupted(rank: Rank) -> None:
    """Rank 1 never registers it and cannot be notified, so the communicator of rank 0 ends."""
    gpu.require(rank.provider, "ncclCommWindowRegister")
    comm = rank.comm
    buffers = [comm.mem_alloc(4096) for _ in range(2)]
    comm.register_window(buffers[0])  # connects the ranks
    if rank.rank == 1:
        rank.wait_event("interrupted", 0)
    else:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        interrupt_when_blocked(signal.SIGALRM)
        with pytest.raises(KeyboardInterrupt):
            comm.register_window(buffers[1])
        rank.set_event("interrupted")
        with pytest.raises((ValueError, nccl.NcclError)):
            comm.all_reduce(buffers[0])
    comm.abort()
