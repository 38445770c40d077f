"""Proves that Ctrl-C ends every wait of the main thread on CPUs, and on GPUs those for streams and
events, with a KeyboardInterrupt, within 0.2 seconds on an idle machine, that the other ranks are
notified, and that a signal handler that does not raise leaves the wait alone.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support import gpu
from tests.support.blocking import interrupt_when_blocked
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_SOON = 0.2  # seconds
_ATTEMPTS = 10

_WAIT = """
import os, signal, sys, threading, time
import numpy as np
from pynccl import nccl
from tests.support.blocking import wait_until_blocked
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

def interrupt():
    global sent
    wait_until_blocked(threading.main_thread())
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

def wait(what, comm, array, stream):
    if what == "all_reduce": comm.all_reduce(array)
    elif what == "recv": comm.recv(array, 1)
    elif what == "send": comm.send(np.ones(1 << 20), 1)
    elif what == "group":
        with nccl.group():
            comm.send(array, 1)
            comm.recv(np.ones_like(array), 1)
    elif what == "split": comm.split(0)
    elif what == "init": nccl.Communicator(2, nccl.get_unique_id("host"), 0, provider="host")
    elif what == "init of the second":
        uid = nccl.get_unique_id("host")
        nccl.Communicator(3, uid, 1, provider="host")
    elif what == "synchronize":
        comm.all_reduce(array, stream=stream)
        stream.synchronize()
    elif what == "event":
        comm.all_reduce(array, stream=stream)
        event = nccl.Event("host")
        event.record(stream)
        event.synchronize()
    elif what == "finalize":
        comm.all_reduce(array, stream=stream)
        comm.finalize()
    elif what == "close":
        comm.all_reduce(array, stream=stream)
        comm.close()
        time.sleep(0.01)  # the exception is raised between two instructions
    elif what == "suspend": comm.suspend()

def attempt(what):
    comms = nccl.Communicator.init_all(2, provider="host")
    comm, array, stream = comms[0], np.ones(4), nccl.Stream("host")
    interrupter = threading.Thread(target=interrupt, daemon=True)
    interrupter.start()
    try:
        wait(what, comm, array, stream)
        sys.exit("no exception")
    except KeyboardInterrupt as error:
        late = time.monotonic() - sent
    print("interrupted", late, comm.revoked)
    for one in comms:
        one.abort()
    return late

soon, attempts, *names = sys.argv[1:]
for what in names:
    while attempt(what) > float(soon) and (attempts := int(attempts) - 1): pass
"""
# Whether the wait belongs to the communicator, which is revoked then.
_WAITS = {
    "all_reduce": True,
    "recv": True,
    "send": True,
    "group": True,
    "split": True,
    "init": False,
    "init of the second": False,
    "synchronize": False,
    "event": False,
    "finalize": True,
    "close": True,
    "suspend": True,
}


def _interrupted(soon: float, *waits: str) -> list[tuple[float, bool]]:
    """The delay of each interruption, and whether the communicator is revoked then. Each wait is
    repeated until a delay is below ``soon``.
    """
    done = run_python("-c", _WAIT, str(soon), str(_ATTEMPTS), *waits)
    assert done.returncode == 0, done
    lines = [line.split() for line in done.stdout.splitlines()]
    assert all(line[0] == "interrupted" for line in lines), done
    return [(float(late), revoked == "True") for _, late, revoked in lines]


def test_waits_are_interrupted() -> None:
    attempts = _interrupted(60, *_WAITS)
    assert dict(zip(_WAITS, (revoked for _, revoked in attempts), strict=True)) == _WAITS


@pytest.mark.serial
def test_waits_are_interrupted_soon() -> None:
    attempts = _interrupted(_SOON, *_WAITS)
    assert sum(late < _SOON for late, _ in attempts) == len(_WAITS), attempts


_HANDLER = """
import os, signal, threading
import numpy as np
from pynccl import nccl
from tests.support.blocking import wait_until_blocked
comms = nccl.Communicator.init_all(2, provider="host")
calls, called = [], threading.Semaphore(0)
def handle(*_):
    calls.append(threading.current_thread().name)
    called.release()
signal.signal(signal.SIGUSR1, handle)
arrays = [np.ones(4), np.ones(4)]
seen = []
def interrupt():
    wait_until_blocked(threading.main_thread())
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
        called.acquire(timeout=20)
    seen.append(len(calls))
    comms[1].all_reduce(arrays[1])
threading.Thread(target=interrupt).start()
comms[0].all_reduce(arrays[0])
print(seen, calls, arrays[0])
for comm in comms:
    comm.close()
"""


def test_a_handler_runs_while_the_call_waits() -> None:
    done = run_python("-c", _HANDLER)
    assert done.stdout == "[2] ['MainThread', 'MainThread'] [2. 2. 2. 2.]\n", done


_SHRINK = """
import contextlib, os, signal, threading
import numpy as np
from pynccl import nccl
from tests.support.blocking import wait_until_blocked
comms = nccl.Communicator.init_all(2, provider="host")
entered, shrunk, early = threading.Event(), threading.Event(), []
def handle(*_):
    entered.set()
    early.append(shrunk.wait(1))
signal.signal(signal.SIGUSR1, handle)
def shrink():
    wait_until_blocked(threading.main_thread())
    os.kill(os.getpid(), signal.SIGUSR1)
    entered.wait(20)
    smaller = comms[0].shrink([1], abort=True)
    shrunk.set()
    smaller.close()
thread = threading.Thread(target=shrink)
thread.start()
with contextlib.suppress(nccl.NcclError):
    comms[0].all_reduce(np.ones(4))
thread.join()
print(early, shrunk.is_set())
for comm in comms:
    comm.abort()
"""


def test_shrink_with_abort_waits_for_the_operations_that_it_ends() -> None:
    """The caller may then free their buffers. One is blocked in a signal handler meanwhile."""
    done = run_python("-c", _SHRINK)
    assert done.stdout == "[False] True\n", done


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
