"""Proves the guarantees of streams: a call on a stream returns immediately, the operations of one
communicator run in the order of their calls on any streams, events order streams, and
barriers the streams of all ranks. C functions run in order and without the GIL, and their arguments
live until then. test_failures.py tests failures in the background.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import in_threads
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL


@on_ranks(2, by="provider")
def test_operations_run_in_the_order_of_calls(rank: Rank) -> None:
    """Each operation reads the result of the previous one, on another stream, without an event."""
    streams = [rank.stream() for _ in range(3)]
    a, b = (rank.memory.put(np.full(10_007, start, np.float64)) for start in (1.0, 0.0))
    for number in range(60):
        rank.comm.all_reduce(a, out=b, stream=streams[number % 3])
        rank.comm.all_reduce(b, nccl.AVG, out=a, stream=streams[(number * 7 + 1) % 3])
        rank.comm.all_reduce(a, stream=streams[(number + 2) % 3])
        # That of the calling thread every other time.
        rank.comm.all_reduce(a, nccl.AVG, stream=streams[number % 3] if number % 2 else None)
    for stream in streams:
        stream.synchronize()
    assert (rank.memory.get(a) == float(rank.nranks) ** 120).all()


@on_ranks(2)
def test_a_call_on_a_stream_returns_immediately(rank: Rank) -> None:
    """The other rank calls it afterwards."""
    comm, stream, array = rank.comm, rank.stream(), np.ones(4)
    comm.all_reduce(array)
    if rank.rank == 1:
        rank.wait_event("returned", 0)
    comm.all_reduce(array, stream=stream)
    if rank.rank == 0:
        time.sleep(0.1)
        assert not stream.query()
        assert (array == 2).all(), "written before the call of the other rank"
        rank.set_event("returned")
    stream.synchronize()
    assert stream.query()
    assert (array == 4).all()


@on_ranks(1, by="provider")
def test_events_order_streams(rank: Rank) -> None:
    first, second = rank.stream(), rank.stream()
    begun, ended = rank.event(timing=True), rank.event(timing=True)
    seen: list[str] = []
    gate, moments = threading.Event(), [time.monotonic()]

    def slowly() -> None:
        moments.append(time.monotonic())
        gate.wait()
        time.sleep(0.1)
        seen.append("first")
        moments.append(time.monotonic())

    begun.record(first)
    first.launch(slowly)
    ended.record(first)
    assert not ended.query()
    second.wait(ended)
    second.launch(lambda: seen.append("second"))
    assert not second.query()
    gate.set()
    second.synchronize()
    assert seen == ["first", "second"]
    assert ended.query()
    earliest, entered, left, latest = (*moments, time.monotonic())
    resolution = 0.001
    assert left - entered < begun.elapsed_time(ended) + resolution
    assert begun.elapsed_time(ended) < latest - earliest + resolution
    # A wait is for the last record at that time. A later record does not matter.
    gate = threading.Event()
    first.launch(gate.wait)
    first.launch(lambda: seen.append("gate"))
    ended.record(first)
    second.wait(ended)
    ended.record(second)
    gate.set()
    ended.synchronize()
    assert seen[-1] == "gate"
    # A wait for an event that was never recorded returns at once.
    fresh = rank.event()
    assert fresh.query()
    second.wait(fresh)
    fresh.synchronize()
    second.synchronize()


@on_ranks(1, by="provider")
def test_launched_functions_run_in_order(rank: Rank) -> None:
    stream, seen = rank.stream(), []
    thread = threading.get_ident()
    for number in range(50):
        stream.launch(lambda number=number: seen.append((number, threading.get_ident())))
    stream.synchronize()
    assert [number for number, _ in seen] == list(range(50))
    assert thread not in {ident for _, ident in seen}
    # The hook gets an exception of a function, and a wait raises it. The queue continues.
    unraisable = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda what: unraisable.append(what.exc_type)
    try:
        stream.launch(lambda: 1 // 0)
        stream.launch(seen.clear)
        with pytest.raises(ZeroDivisionError):
            stream.synchronize()
    finally:
        sys.unraisablehook = hook
    assert unraisable == [ZeroDivisionError]
    assert seen == []
    stream.synchronize()
    with pytest.raises(TypeError):
        stream.launch("no function")

    def function() -> None:
        pass

    alive = weakref.ref(function)
    stream.launch(function)
    stream.synchronize()
    del function
    gc.collect()
    assert alive() is None


@on_ranks(1)
def test_a_function_cannot_wait_for_its_own_stream(rank: Rank) -> None:
    """CUDA does not permit it either. Here it would wait for itself."""
    stream, other = rank.stream(), rank.stream()
    stream.launch(other.synchronize)
    stream.launch(stream.synchronize)
    with pytest.raises(nccl.DriverError, match="not permitted in a function called by a stream"):
        stream.synchronize()


@on_ranks(2)
def test_a_group_does_not_couple_streams_that_share_no_communicator(rank: Rank) -> None:
    first, second, gate = rank.stream(), rank.stream(), threading.Event()
    x, y = np.ones(10), np.ones(10)
    with rank.comm.split(0, rank.rank) as other:
        first.launch(lambda: gate.wait(30))
        with nccl.group():
            rank.comm.all_reduce(x, stream=first)
            other.all_reduce(y, stream=second)
        waiting = threading.Thread(target=second.synchronize)
        waiting.start()
        waiting.join(10)
        done = not waiting.is_alive() and (y == rank.nranks).all() and (x == 1).all()
        gate.set()
        waiting.join()
        first.synchronize()
    assert done, "the second stream waited for the first one"
    assert (x == rank.nranks).all()


@pytest.mark.parametrize("gated", range(3))
def test_a_group_couples_the_streams_of_a_communicator(comm: nccl.Communicator, gated: int) -> None:
    """All operations begin when every stream has reached the group, and end together."""
    streams, gate = [nccl.Stream("host") for _ in range(3)], threading.Event()
    streams[gated].launch(lambda: gate.wait(30))
    with nccl.group():
        for stream in streams:
            comm.all_reduce(np.ones(3), stream=stream)
    time.sleep(0.05)  # a stream that does not wait becomes idle
    idle = [stream.query() for stream in streams]
    gate.set()
    for stream in streams:
        stream.synchronize()
    assert idle == [False] * 3


@on_ranks(1)
def test_closed_streams_and_events(rank: Rank) -> None:
    stream, event, done = rank.stream(), rank.event(), []
    stream.launch(lambda: (time.sleep(0.1), done.append(1)))
    stream.close()  # queued work still runs
    stream.close()
    deadline = time.monotonic() + 20
    while not done and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done == [1]
    event.close()
    event.close()
    for call in (stream.synchronize, stream.query, lambda: stream.handle):
        with pytest.raises(ValueError, match="stream: it is closed"):
            call()
    for call in (event.synchronize, event.query, lambda: event.handle):
        with pytest.raises(ValueError, match="event: it is closed"):
            call()
    array = np.zeros(2)
    with pytest.raises(ValueError, match="stream: it is closed"):
        rank.comm.all_reduce(array, stream=stream)
    timed = rank.event(timing=True)
    with pytest.raises(ValueError, match=r"^end: it was created without timing=True"):
        timed.elapsed_time(rank.event())
    with pytest.raises(ValueError, match=r"^event: it was created without timing=True"):
        rank.event().elapsed_time(timed)
    with pytest.raises(nccl.DriverError) as caught:
        timed.elapsed_time(rank.event(timing=True))
    assert caught.value.function == "cuEventElapsedTime"
    caught.match(r"^cuEventElapsedTime failed: CUDA_ERROR_INVALID_HANDLE \(\w.*\w\) \[stream\.cpp:")
    rank.comm.all_reduce(array)


@on_ranks(1, by="provider")
def test_an_elapsed_time_can_be_read_during_a_capture(rank: Rank) -> None:
    stream, began, ended = rank.stream(), rank.event(timing=True), rank.event(timing=True)
    began.record(stream)
    ended.record(stream)
    stream.synchronize()
    comm, data = rank.comm, rank.memory.put(np.ones(4, np.float32))
    with nccl.capture(stream, mode="global"):
        comm.all_reduce(data, stream=stream)
        assert began.elapsed_time(ended) >= 0


@on_ranks(2)
def test_deleted_streams_finish_their_work(rank: Rank) -> None:
    array = np.ones(1000)
    for _ in range(10):
        rank.comm.all_reduce(array, stream=rank.stream())
    rank.comm.all_reduce(array)
    assert (array == float(rank.nranks) ** 11).all()


@pytest.mark.parametrize(("nranks", "threads"), [(2, True), (4, False)])
@on_ranks(by="threads")
def test_barriers_order_the_streams_of_all_ranks(rank: Rank) -> None:
    """Each rank reads what the previous one wrote late, before the barrier."""
    comm = rank.comm
    with comm.symmetric_empty(3, "int32") as memory:
        own = np.from_dlpack(memory)
        following = np.from_dlpack(memory.peer((rank.rank + 1) % rank.nranks))
        own[:] = 0
        comm.barrier()
        stream, seen = rank.stream(), []

        def write(turn: int) -> None:
            time.sleep(0.01 * rank.rank)
            following[turn] = turn + 1

        stream.launch(lambda: write(0))
        comm.barrier(stream=stream)
        stream.launch(lambda: seen.append(own[0]))
        stream.synchronize()

        stream.launch(lambda: write(1))
        with nccl.group():
            comm.barrier(stream=stream)
            comm.all_reduce(np.ones(1), stream=stream)
        stream.launch(lambda: seen.append(own[1]))
        stream.synchronize()

        with nccl.capture(stream) as graph:
            stream.launch(lambda: write(2))
            comm.barrier(stream=stream)
            stream.launch(lambda: seen.append(own[2]))
        for _ in range(2):
            graph.launch(stream)
            stream.synchronize()
            comm.barrier()
            own[2] = 0
            comm.barrier()
        graph.close()
        assert seen == [1, 2, 3, 3]


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_barriers_on_a_device(rank: Rank) -> None:
    stream = rank.stream()
    rank.comm.barrier()  # on the default stream
    for _ in range(3):
        rank.comm.barrier(stream=stream)
    with nccl.capture(stream) as graph:
        rank.comm.barrier(stream=stream)
    graph.launch(stream)
    stream.synchronize()
    graph.close()


_AT_THE_END = """
import sys, time
from pynccl import nccl
stream = nccl.Stream(sys.argv[1])
comm = nccl.Communicator(1, nccl.get_unique_id(sys.argv[1]), 0, provider=sys.argv[1])
stream.launch(lambda: time.sleep(0.3))
stream.launch(lambda: None)
"""


def test_the_process_ends_while_a_function_runs(provider: str) -> None:
    """The stream's thread needs the GIL of an interpreter that ends."""
    for _ in range(5 if FULL else 2):
        done = run_python("-W", "ignore", "-c", _AT_THE_END, provider)
        assert (done.returncode, done.stderr) == (0, "")


# C functions

_LIBC = ctypes.CDLL(None)
# A C function of one pointer: it waits for a semaphore, or posts one.
_WAIT = ctypes.cast(_LIBC.sem_wait, ctypes.c_void_p).value or 0
_POST = ctypes.cast(_LIBC.sem_post, ctypes.c_void_p).value or 0
_SEMAPHORE = 32  # bytes of a sem_t


def _semaphore() -> np.ndarray:
    memory = np.zeros(_SEMAPHORE, np.uint8)
    assert _LIBC.sem_init(ctypes.c_void_p(memory.ctypes.data), 0, 0) == 0
    return memory


def _value(semaphore: np.ndarray) -> int:
    value = ctypes.c_int()
    _LIBC.sem_getvalue(ctypes.c_void_p(semaphore.ctypes.data), ctypes.byref(value))
    return value.value


@pytest.fixture
def stream() -> nccl.Stream:
    return nccl.Stream("host")


def test_c_functions_run_in_the_order_of_the_stream(stream: nccl.Stream) -> None:
    gate, done = _semaphore(), _semaphore()
    order: list[int] = []
    stream.launch_native(_WAIT, gate)
    stream.launch(lambda: order.append(_value(done)))
    stream.launch_native(_POST, done.ctypes.data)
    stream.launch(lambda: order.append(_value(done)))
    time.sleep(0.05)
    assert not order
    _LIBC.sem_post(ctypes.c_void_p(gate.ctypes.data))
    stream.synchronize()
    assert order == [0, 1]


def test_c_functions_need_no_gil(stream: nccl.Stream) -> None:
    """The function runs while another thread holds the GIL all the time."""
    done = _semaphore()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        stream.launch_native(_POST, done)
        stream.launch_native(_POST, done.ctypes.data)
        # PyDLL holds the GIL.
        post = ctypes.PyDLL(None).sem_wait
        post.argtypes = [ctypes.c_void_p]
        assert post(done.ctypes.data) == post(done.ctypes.data) == 0
    finally:
        sys.setswitchinterval(interval)
    stream.synchronize()


@pytest.mark.parametrize("make", [bytearray, bytes, memoryview, np.frombuffer])
def test_the_memory_of_an_object(stream: nccl.Stream, make: type) -> None:
    seen: list[bytes] = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda address: seen.append(ctypes.string_at(address, 8))
    )
    source = make(b"abcdefgh")
    stream.launch_native(ctypes.cast(callback, ctypes.c_void_p).value or 0, source)
    stream.synchronize()
    assert seen == [b"abcdefgh"]


def _gone(reference: weakref.ref[object]) -> bool:
    """Objects used by a stream's thread are released by a thread that holds the GIL."""
    until = time.monotonic() + 10
    while reference() is not None and time.monotonic() < until:
        time.sleep(0.001)
        gc.collect()
    return reference() is None


class _Memory(np.ndarray):
    """An array with weak references."""


def _weak(memory: np.ndarray) -> tuple[np.ndarray, weakref.ref[object]]:
    array = memory.view(_Memory)
    return array, weakref.ref(array)


def test_the_argument_lives_until_it_has_run(stream: nccl.Stream) -> None:
    gate, (done, argument) = _semaphore(), _weak(_semaphore())
    stream.launch_native(_WAIT, gate)
    stream.launch_native(_POST, done)
    del done
    gc.collect()
    assert argument() is not None
    _LIBC.sem_post(ctypes.c_void_p(gate.ctypes.data))
    stream.synchronize()
    assert _gone(argument)


def test_a_bytearray_cannot_be_resized_meanwhile(stream: nccl.Stream) -> None:
    gate, memory = _semaphore(), bytearray(_semaphore())
    stream.launch_native(_WAIT, gate)
    stream.launch_native(_POST, memory)
    with pytest.raises(BufferError):
        memory.extend(b"more")
    _LIBC.sem_post(ctypes.c_void_p(gate.ctypes.data))
    stream.synchronize()


def test_a_graph_keeps_a_c_function_and_calls_it_at_every_launch(stream: nccl.Stream) -> None:
    done, alive = _weak(_semaphore())
    with nccl.capture(stream) as graph:
        stream.launch_native(_POST, done)
        stream.launch_native(_POST, done.ctypes.data)
    assert _value(done) == 0
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert _value(done) == 6
    del done
    gc.collect()
    assert alive() is not None
    graph.close()
    assert _gone(alive)


def test_many_c_functions(stream: nccl.Stream) -> None:
    """More than Python's list of pending calls holds."""
    done = _semaphore()
    objects = [_weak(np.frombuffer(bytes(8), np.uint8).copy()) for _ in range(500)]
    nothing = ctypes.cast(_LIBC.abs, ctypes.c_void_p).value
    for array, _ in objects:
        stream.launch_native(nothing, array)
    stream.launch_native(_POST, done)
    stream.synchronize()
    references = [reference for _, reference in objects]
    del objects, array
    stream.launch_native(_POST, done)
    assert all(map(_gone, references))
    stream.synchronize()
    assert _value(done) == 2


def test_mistakes_with_c_functions(stream: nccl.Stream) -> None:
    with pytest.raises(ValueError, match="function: the address is 0"):
        stream.launch_native(0)
    for wrong in (None, "abs", 1.5, lambda: None):
        with pytest.raises(TypeError, match="function: "):
            stream.launch_native(wrong)
    for wrong in (None, "text", 1.5, lambda: None):
        with pytest.raises(TypeError, match="argument: "):
            stream.launch_native(_POST, wrong)
    with pytest.raises(ValueError, match="argument: its memory is not contiguous"):
        stream.launch_native(_POST, np.zeros((8, 8))[:, ::2])
    with pytest.raises(ValueError, match="function: -1 does not fit"):
        stream.launch_native(-1)
    stream.close()
    with pytest.raises(ValueError, match="stream: it is closed"):
        stream.launch_native(_POST, _semaphore())


@on_ranks(2, by="provider")
def test_c_functions_between_collectives(rank: Rank) -> None:
    stream, done = rank.stream(), _semaphore()
    array = rank.memory.put(np.ones(4, np.float32))
    rank.comm.all_reduce(array, stream=stream)
    stream.launch_native(_POST, done)
    rank.comm.all_reduce(array, stream=stream)
    stream.synchronize()
    assert _value(done) == 1
    assert (rank.memory.get(array) == rank.nranks**2).all()


def test_c_functions_of_many_threads() -> None:
    done = _semaphore()

    def run() -> None:
        own = nccl.Stream("host")
        for _ in range(100):
            own.launch_native(_POST, done)
        own.synchronize()

    in_threads(run, run, run, run)
    assert _value(done) == 400
