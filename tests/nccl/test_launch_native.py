"""Proves that C functions run on streams and in graphs, in order and without the GIL, and that
their arguments live until then.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
import weakref

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import in_threads
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_LIBC = ctypes.CDLL(None)
# A C function of one pointer: it waits for a semaphore, or posts one.
_WAIT = ctypes.cast(_LIBC.sem_wait, ctypes.c_void_p).value or 0
_POST = ctypes.cast(_LIBC.sem_post, ctypes.c_void_p).value or 0
_SEMAPHORE = 32  # bytes of a sem_t


def _semaphore(value: int = 0) -> np.ndarray:
    memory = np.zeros(_SEMAPHORE, np.uint8)
    assert _LIBC.sem_init(ctypes.c_void_p(memory.ctypes.data), 0, value) == 0
    return memory


def _value(semaphore: np.ndarray) -> int:
    value = ctypes.c_int()
    _LIBC.sem_getvalue(ctypes.c_void_p(semaphore.ctypes.data), ctypes.byref(value))
    return value.value


@pytest.fixture
def stream() -> nccl.Stream:
    return nccl.Stream("host")


def test_it_runs_in_the_order_of_the_stream(stream: nccl.Stream) -> None:
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


def test_it_needs_no_gil(stream: nccl.Stream) -> None:
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


def test_a_graph_keeps_it_and_calls_it_at_every_launch(stream: nccl.Stream) -> None:
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


def test_many_functions(stream: nccl.Stream) -> None:
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


def test_mistakes(stream: nccl.Stream) -> None:
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
def test_between_collectives(rank: Rank) -> None:
    stream, done = rank.stream(), _semaphore()
    array = rank.memory.put(np.ones(4, np.float32))
    rank.comm.all_reduce(array, stream=stream)
    stream.launch_native(_POST, done)
    rank.comm.all_reduce(array, stream=stream)
    stream.synchronize()
    assert _value(done) == 1
    assert (rank.memory.get(array) == rank.nranks**2).all()


def test_of_many_threads() -> None:
    done = _semaphore()

    def run() -> None:
        own = nccl.Stream("host")
        for _ in range(100):
            own.launch_native(_POST, done)
        own.synchronize()

    in_threads(run, run, run, run)
    assert _value(done) == 400
