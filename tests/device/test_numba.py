"""Proves that functions compiled by Numba communicate through their peers' memory: ranks as
processes and as threads, every function, also on a stream, and waits that end.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.device.memory import check_rotation_in_a_graph, shared, sizes_and_worlds
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

numba = pytest.importorskip("numba")

from pynccl.device import numba as peers  # noqa: E402


@numba.njit(nogil=True)
def _ring(pointers, signals, out, rank, nranks):
    """Each rank puts into the next one's memory, row by row."""
    for step in range(out.shape[0]):
        values = np.full(out.shape[1] - 1, rank + step, out.dtype)
        peers.put_signal(pointers, signals, (rank + 1) % nranks, 1, values, 0)
        peers.wait(signals, rank, step + 1, 0)
        out[step] = peers.array(peers.peer(pointers, rank), (out.shape[1],), np.float32)
        peers.barrier(signals, rank, nranks, 1, 1)


@pytest.mark.parametrize(("nranks", "threads"), [(4, True), *([(2, False)] if FULL else [])])
@on_ranks(by="threads", timeout=120)
def test_put_signal_wait_and_barrier(rank: Rank) -> None:
    """On the calling thread and on a stream."""
    for on_stream in (False, True):
        _check_ring(rank, on_stream)


def _check_ring(rank: Rank, on_stream: bool) -> None:
    rounds, count = 5, 16
    memory = shared(rank, count, "float32")
    signals = shared(rank, 1 + peers.barrier_words(rank.nranks, 2))
    out = np.empty((rounds, count), np.float32)
    arguments = memory.pointers, signals.pointers, out, rank.rank, rank.nranks
    if on_stream:
        stream = rank.stream()
        stream.launch(lambda: _ring(*arguments))
        stream.synchronize()
        stream.close()
    else:
        _ring(*arguments)
    source = (rank.rank - 1) % rank.nranks
    expected = [[0] + [source + step] * (count - 1) for step in range(rounds)]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))


@numba.njit(nogil=True)
def _rotate(pointers, signals, rank, nranks):
    """Each rank gets the number of the previous one; two barriers, as in a captured kernel."""
    value = peers.array(peers.peer(pointers, rank), (1,), np.int64).copy()
    peers.barrier(signals, rank, nranks)
    peers.put(pointers, (rank + 1) % nranks, 0, value)
    peers.barrier(signals, rank, nranks)


@sizes_and_worlds
@on_ranks(by="threads", timeout=120)
def test_in_a_graph_with_a_collective(rank: Rank) -> None:
    launches = 5
    memory = shared(rank, 1)
    signals = shared(rank, peers.barrier_words(rank.nranks))
    arguments = memory.pointers, signals.pointers, rank.rank, rank.nranks
    check_rotation_in_a_graph(rank, memory, launches, lambda: _rotate(*arguments))
    assert signals.own[-1] == 2 * launches


@numba.njit(nogil=True)
def _add(signals, times):
    """All ranks add to the same word of rank 0."""
    largest = 0
    for _ in range(times):
        largest = max(largest, peers.fetch_add(peers.word(signals, 0, 0), 2))
    return largest


@sizes_and_worlds
@on_ranks(by="threads", timeout=120)
def test_additions_are_atomic(rank: Rank) -> None:
    times = 10_000
    signals = shared(rank, 1)
    largest = _add(signals.pointers, times)
    most = rank.comm.all_gather(np.array([largest]), out=np.empty(rank.nranks, np.int64))
    assert most is None
    rank.comm.all_reduce(np.zeros(1))
    assert signals.own[0] == (2 * times * rank.nranks if rank.rank == 0 else 0)
    assert largest < 2 * times * rank.nranks


@numba.njit(nogil=True)
def _exchange(words):
    address = peers.word(words, 0, 1)
    before = peers.load_acquire(address)
    peers.store_release(address, before + 5)
    return before, peers.wait(words, 0, 6, 1)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_addresses_of_both_kinds(dtype: type[np.generic]) -> None:
    memory = np.array([0, 1, 2])
    assert _exchange(np.array([memory.ctypes.data], dtype)) == (1, 6)
    assert memory.tolist() == [0, 6, 2]


@numba.njit(nogil=True)
def _wait(signals, timeout):
    return peers.wait(signals, 0, 1, 0, timeout)


def test_waits_end() -> None:
    memory = np.zeros(1, np.int64)
    table = np.array([memory.ctypes.data])
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="waited too long for a signal"):
        _wait(table, 0.3)
    assert time.monotonic() - start >= 0.3
    memory[0] = 1
    assert _wait(table, 0.3) == 1


def _native(argument):
    words = numba.carray(argument, (3,), np.int64)
    signals = words[0:1]
    peers.signal(signals, 0, 0, 4)
    words[2] = peers.wait(signals, 0, 4)


@on_ranks(2, timeout=120)
def test_as_a_native_function_on_a_stream(rank: Rank) -> None:
    signals = shared(rank, 1)
    words = np.array([signals.pointers[rank.rank], 0, 0])
    native = numba.cfunc("void(voidptr)", nopython=True)(_native)
    stream = rank.stream()
    stream.launch_native(native.address, words.ctypes.data)
    stream.synchronize()
    stream.close()
    assert (signals.own[0], words[2]) == (4, 4)


def test_arguments() -> None:
    with pytest.raises(ValueError, match="nranks: 0 is not positive"):
        peers.barrier_words(0)
    with pytest.raises(ValueError, match="barriers: 0 is not positive"):
        peers.barrier_words(2, 0)
    assert peers.barrier_words(4, 3) == 15
    with pytest.raises(numba.TypingError):
        numba.njit(lambda: peers.load_acquire(1.5))()
