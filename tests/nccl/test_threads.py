"""Proves the guarantees for several threads of a process: operations on streams and on the calling
thread keep one order, a failure to create a stream's thread loses nothing, one thread at a time
creates communicators and windows, the process can fork at any time, and blocked threads do not
disturb the end of the interpreter.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support.blocking import in_threads, together
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_PAGE = 4096


@on_ranks(1, timeout=120)
def test_threads_that_share_streams(rank: Rank) -> None:
    """Every operation runs, in one order."""
    comm, streams = rank.comm, [rank.stream() for _ in range(2)]
    double = comm.pre_mul_sum(2.0, "float64")

    def on_streams() -> None:
        array = np.ones(8)
        for number in range(300):
            comm.all_reduce(array, double, stream=streams[number % 2])
        for stream in streams:
            stream.synchronize()
        assert (array == 2.0**300).all()

    def in_groups() -> None:
        arrays = [np.ones(8) for _ in range(2)]
        for _ in range(300):
            with nccl.group():
                for array, stream in zip(arrays, streams, strict=True):
                    comm.all_reduce(array, double, stream=stream)
        for stream in streams:
            stream.synchronize()
        assert (np.array(arrays) == 2.0**300).all()

    for _ in range(10):
        in_threads(on_streams, in_groups, on_streams)


@pytest.mark.parametrize("how", ["call", "group", "two streams", "graph"])
@on_ranks(2, timeout=30)
def test_a_stream_without_a_thread(rank: Rank, how: str) -> None:
    """The first call on a new stream creates a thread. If that fails, nothing is enqueued."""
    comm, stream, other = rank.comm, rank.stream(), rank.stream()
    array, other_array = np.ones(4), np.ones(4)
    side = rank.stream()
    event = rank.event()
    with nccl.capture(side) as graph:
        event.record(side)
        other.wait(event)
        comm.all_reduce(array, stream=other)
        event.record(other)
        side.wait(event)

    def call() -> None:
        if how == "call":
            comm.all_reduce(array, stream=stream)
        elif how == "group":
            with nccl.group():
                comm.all_reduce(array)
                comm.all_reduce(other_array, stream=stream)
        elif how == "two streams":
            with nccl.group():
                comm.all_reduce(array, stream=stream)
                comm.all_reduce(other_array, stream=rank.stream())
        else:
            graph.launch(stream)

    # The remaining address space is too small for a thread's stack, and free stacks are in use.
    done = threading.Event()
    idle = [threading.Thread(target=done.wait, daemon=True) for _ in range(8)]
    for thread in idle:
        thread.start()
    limit = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE + (2 << 20), limit[1]))
    try:
        call()
        refused = False
    except (nccl.NcclError, nccl.DriverError, MemoryError):
        refused = True
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert refused
    done.set()
    assert comm.async_error() is None
    array[:] = other_array[:] = 1
    call()
    comm.all_reduce(array)
    stream.synchronize()
    assert (array == rank.nranks**2).all()
    if how in ("group", "two streams"):
        assert (other_array == rank.nranks).all()
    graph.close()


@on_ranks(1, timeout=60)
def test_two_threads_split_one_communicator(rank: Rank) -> None:
    """One thread at a time creates children. The other one gets an error."""
    comms = nccl.Communicator.init_all(2, provider="host")
    children: list[nccl.Communicator] = []

    def split() -> None:
        for _ in range(20):
            with nccl.group():
                made = [comm.split(0) for comm in comms]
            children.extend(made)

    for error in filter(None, together(split, split)):
        assert isinstance(error, ValueError)
        assert "another thread is creating a communicator from it" in str(error)
    assert len(children) >= 40
    for pair in zip(children[::2], children[1::2], strict=True):
        arrays = [np.ones(2) for _ in pair]
        with nccl.group():
            for comm, array in zip(pair, arrays, strict=True):
                comm.all_reduce(array)
        assert all((array == 2).all() for array in arrays)
    for comm in children + comms:
        comm.close()


@on_ranks(1, timeout=60)
def test_two_threads_register_windows(rank: Rank) -> None:
    comm, made = rank.comm, []
    buffers = [comm.mem_alloc(_PAGE) for _ in range(2)]

    def register(buffer: nccl.Buffer) -> Callable[[], None]:
        def run() -> None:
            for _ in range(50):
                window = comm.register_window(buffer)
                window.close()
                made.append(window)

        return run

    for error in filter(None, together(*map(register, buffers))):
        assert isinstance(error, ValueError)
        assert "another thread" in str(error)
    assert made
    # A thread whose close() was refused has left its window open.
    comm.register_window(comm.mem_alloc(_PAGE)).close()


@on_ranks(1, timeout=30)
def test_objects_are_not_created_in_a_raw_group(rank: Rank) -> None:
    library = raw.load("host")
    library.ncclGroupStart()
    for make in (
        lambda: nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host"),
        lambda: nccl.Communicator.init_all(2, provider="host"),
        lambda: rank.comm.split(0),
        lambda: rank.comm.register_window(rank.comm.mem_alloc(_PAGE)),
    ):
        with pytest.raises(ValueError, match="a group of raw"):
            make()
    library.ncclGroupEnd()
    rank.comm.split(0).close()


def _use_in_a_child(comms: list[nccl.Communicator], graph: nccl.Graph, stream: nccl.Stream) -> None:
    """A child of a fork is refused, and its own communicators have time limits."""
    for comm in comms:
        comm.flight_record()
        with pytest.raises(nccl.NcclError):
            comm.all_reduce(np.ones(4))
    for call in (lambda: graph.launch(stream), stream.query):
        with pytest.raises((nccl.NcclError, nccl.DriverError)):
            call()
    _expire()


def _expire() -> None:
    own, queue = nccl.Communicator.init_all(2, provider="host"), nccl.Stream("host")
    own[0].timeout = 0.1
    own[0].all_reduce(np.ones(4), stream=queue)
    with pytest.raises(nccl.NcclTimeoutError):
        queue.synchronize()
    for comm in own:
        comm.abort()


@on_ranks(1, fresh=True, timeout=240)
def test_a_fork_while_deadlines_are_checked(rank: Rank) -> None:
    """No mutex is locked in the child."""
    array, stream, captured = np.ones(4), rank.stream(), rank.stream()
    comms = [nccl.Communicator.init_all(1, provider="host")[0] for _ in range(40)]
    with nccl.capture(captured) as graph:
        comms[0].all_reduce(array, stream=captured)
    blocked = threading.Event()
    stream.launch(blocked.wait)
    for comm in comms:
        comm.all_reduce(array, stream=stream)  # the monitor polls whether they are done
    graph.launch(stream)

    def have_deadlines_checked() -> None:
        while not blocked.is_set():
            with nccl.deadline(50):  # wakes the monitor
                pass

    thread = threading.Thread(target=have_deadlines_checked)
    thread.start()
    statuses = []
    for _ in range(60 if FULL else 15):
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that hangs
            try:
                _use_in_a_child(comms, graph, stream)
                os._exit(0)
            finally:
                os._exit(1)
        statuses.append(os.waitpid(child, 0)[1])
    blocked.set()
    thread.join()
    stream.synchronize()
    assert not any(statuses)
    _expire()  # no mutex is locked in the parent either


_BLOCKED_AT_EXIT = """
import sys, threading, time
import numpy as np
from pynccl import libraries, nccl
comms = nccl.Communicator.init_all(2, provider="host")
how, array = sys.argv[1], np.zeros(4)
stream = nccl.Stream("host")
if how == "collective":
    threading.Thread(target=lambda: comms[0].all_reduce(array), daemon=True).start()
elif how == "synchronize":
    comms[0].all_reduce(array, stream=stream)
    threading.Thread(target=stream.synchronize, daemon=True).start()
elif how == "event":
    comms[0].all_reduce(array, stream=stream)
    event = nccl.Event("host")
    event.record(stream)
    threading.Thread(target=event.synchronize, daemon=True).start()
elif how == "launch":
    for _ in range(200):
        stream.launch(lambda sleep=time.sleep: sleep(0.01))
elif how in ("comparison", "import"):
    class Finder:
        def find_spec(self, name, *_, sleep=time.sleep):
            if name == "pynccl._internal.comparison":
                for _ in range(1000):
                    sleep(0.01)
    if how == "import":
        sys.meta_path.insert(0, Finder())
    class Silent:
        def wait(self, *_, sleep=time.sleep):
            for _ in range(1000):
                sleep(0.01)
        set = get = add = check = compare_set = wait
    config = nccl.Config(check="every")
    ids = nccl.get_unique_id("host")
    def call(rank):
        comm = nccl.Communicator(2, ids, rank, config=config, store=Silent(), provider="host")
        comm.all_reduce(array)
    for rank in range(2):
        threading.Thread(target=call, args=[rank], daemon=True).start()
    time.sleep(0.3)
elif how == "on_timeout":
    def note(*_, sleep=time.sleep):
        while True:
            sleep(0.01)
    comms[0].on_timeout, comms[0].timeout = note, 0.01
    comms[0].all_reduce(array, stream=stream)
    time.sleep(0.3)
elif how == "time limits":
    # One limit is exceeded before the end of the interpreter, the other one during it.
    others = nccl.Communicator.init_all(2, provider="host")
    comms[0].timeout, others[0].timeout = 0.01, 0.2
    threading.Thread(target=comms[0].all_reduce, args=[array], daemon=True).start()
    others[0].all_reduce(array, stream=stream)
elif how == "errors":
    sys.setswitchinterval(1e-6)
    def fail():
        while True:
            try:
                library.ncclCommCount(0)
            except nccl.NcclError:
                pass
    library = libraries.load("host")
    for _ in range(8):
        threading.Thread(target=fail, daemon=True).start()
else:
    def call():
        alone = nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host")
        while True:
            alone.all_reduce(array)
    for _ in range(4):
        threading.Thread(target=call, daemon=True).start()
time.sleep(0.1)

class Slow:
    # The end of the interpreter takes a while, in which other threads ask for the GIL.
    def __del__(self, sleep=time.sleep, comms=comms):
        for comm in comms:
            comm.abort()
        sleep(0.3)

slow = Slow()
"""


@pytest.mark.parametrize(
    "how",
    [
        "collective",
        "synchronize",
        "event",
        "launch",
        "comparison",
        "import",
        "on_timeout",
        "time limits",
        "busy",
        "errors",
    ],
)
def test_the_interpreter_ends_with_blocked_threads(how: str) -> None:
    for _ in range(5 if FULL else 1):
        done = run_python("-c", _BLOCKED_AT_EXIT, how)
        assert done.returncode == 0, done
        assert "terminate" not in done.stderr


_SUBINTERPRETER = """
import sys
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
import pynccl._C
one = interpreters.create()
try:
    interpreters.run_string(one, "import pynccl._C")
except Exception as error:
    print(error)
interpreters.destroy(one)
"""


def test_a_subinterpreter_is_refused() -> None:
    done = run_python("-c", _SUBINTERPRETER)
    assert done.returncode == 0, done
    assert "pynccl._C cannot be imported in a subinterpreter" in done.stdout
