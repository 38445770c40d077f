"""Proves that a suspended communicator releases its memory, that the statistics are correct, and
that a resumed one gives correct results, repeatedly, even with messages in flight.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu, holdings
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

ELEMENTS = 300_000

_libc = ctypes.CDLL(None)


def _all_reduce(rank: Rank, comms: list[nccl.Communicator], factor: float) -> None:
    buffers = [rank.memory.put(np.full(ELEMENTS, factor * (comm.rank + 1))) for comm in comms]
    with nccl.group():
        for comm, buffer in zip(comms, buffers, strict=True):
            comm.all_reduce(buffer)
    for buffer in buffers:
        assert (rank.memory.get(buffer) == factor * sum(range(1, len(comms) + 1))).all()


def _each(comms: list[nccl.Communicator], what: str) -> None:
    with nccl.group():
        for comm in comms:
            getattr(comm, what)()


def _resident() -> int:
    """Bytes of hostnccl's segments that this process has in memory."""
    return holdings.resident_in("memfd:hostnccl")


_DIRECT = {"HOSTNCCL_DIRECT_BYTES": "100000000"}


@pytest.mark.parametrize(
    "env", [_DIRECT, {**_DIRECT, "HOSTNCCL_CMA": "0"}], ids=["direct", "staged"]
)
@on_ranks(1, by="env", fresh=True)
def test_memory_is_released(rank: Rank) -> None:
    comms = nccl.Communicator.init_all(4, provider=rank.provider)
    for factor in range(5):
        _all_reduce(rank, comms, factor)
        with nccl.group():
            for comm in comms:
                comm.send(np.ones(100_000, np.uint8), (comm.rank + 1) % 4)
                comm.recv(np.empty(100_000, np.uint8), (comm.rank - 1) % 4)
        before = [comm.memory_stats() for comm in comms]
        assert sum(stats.total for stats in before) == _resident()
        assert all(not stats.suspended and stats.suspendable > 256 << 10 for stats in before)
        _each(comms, "suspend")
        after = [comm.memory_stats() for comm in comms]
        assert all(stats.suspended and stats.suspendable == 0 for stats in after)
        assert sum(stats.total for stats in after) == _resident() < 64 * 4096
        for stats in before + after:
            assert stats.suspendable + stats.persistent == stats.total
            numbers = f"persistent={stats.persistent}, total={stats.total}"
            assert f"{numbers}, suspended={stats.suspended})" in repr(stats)
        with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
            comms[0].all_reduce(np.ones(1))
        with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
            comms[1].suspend()
        assert (comms[1].rank, comms[1].nranks) == (1, 4)
        _each(comms, "resume")
        with pytest.raises(nccl.NcclInvalidUsageError, match="not suspended"):
            comms[2].resume()
        assert not any(comm.memory_stats().suspended for comm in comms)
    _each(comms, "suspend")
    with nccl.group():
        children = [comm.split(0) for comm in comms]  # of suspended ones, as in NCCL
    _all_reduce(rank, children, 3.0)
    for each in [*children, *comms]:
        each.close()


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (3, False), (3, True)])
@on_ranks(by="provider threads")
def test_results_stay_right(rank: Rank) -> None:
    comm = rank.comm
    for number in range(20):
        value = float(number + rank.rank)
        buffer = rank.memory.put(np.full(ELEMENTS if number % 3 else 7, value, np.float32))
        comm.all_reduce(buffer)
        expected = sum(number + other for other in range(rank.nranks))
        assert (rank.memory.get(buffer) == expected).all()
        active = comm.memory_stats()
        comm.suspend()
        stats = comm.memory_stats()
        assert stats.suspended
        assert stats.suspendable <= active.suspendable  # waiting adds to the rest
        assert stats.suspendable + stats.persistent == stats.total
        comm.resume()
        assert not comm.memory_stats().suspended


@on_ranks(2)
def test_messages_in_flight_survive(rank: Rank) -> None:
    """A message sent before a suspension can be received after it."""
    comm = rank.comm
    sent = np.arange(1000, dtype=np.float32)
    received = np.zeros_like(sent)
    if rank.rank == 0:
        comm.send(sent, 1)  # up to 8 KiB wait at the receiver
    comm.suspend()
    comm.resume()
    if rank.rank == 1:
        comm.recv(received, 0)
        assert (received == sent).all()


def _mappings() -> list[tuple[int, int]]:
    """Begin and end of hostnccl's segments in this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if "memfd:hostnccl" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


def _pages(mappings: list[tuple[int, int]]) -> int:
    """Number of resident pages, whichever process has touched them."""
    count = 0
    for begin, end in mappings:
        states = ctypes.create_string_buffer((end - begin) // mmap.PAGESIZE)
        assert _libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), states) == 0
        count += sum(states.raw)
    return count


@on_ranks(2, env={"HOSTNCCL_CMA": "0"})
def test_suspend_returns_when_all_ranks_have_released_their_memory(rank: Rank) -> None:
    comm, array = rank.comm, np.ones(ELEMENTS)
    mappings = _mappings()
    for number in range(10):
        comm.broadcast(array, 1)  # rank 0 has nothing to release and would return first
        comm.suspend()
        pages = _pages(mappings)
        rank.set_event(f"suspended {number}")
        rank.wait_event(f"suspended {number}", 1 - rank.rank)
        assert pages == _pages(mappings), number
        rank.set_event(f"looked {number}")
        rank.wait_event(f"looked {number}", 1 - rank.rank)
        comm.resume()


@on_ranks(2)
def test_operations_on_streams_are_done_first(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    array = np.ones(ELEMENTS)
    for _ in range(10):
        comm.all_reduce(array, stream=stream)
    comm.suspend()
    assert (array == rank.nranks**10).all()
    comm.resume()
    comm.all_reduce(array)
    assert (array == rank.nranks**11).all()


@on_ranks(2, by="provider")
def test_a_suspended_communicator_refuses_operations(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommSuspend")
    comm = rank.comm
    x = rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(x)
    with nccl.plan() as plan:
        comm.all_reduce(x)
    comm.suspend()
    calls: list[Callable[[], object]] = [
        lambda: comm.all_reduce(x),
        lambda: comm.send(x, 1 - rank.rank),
        lambda: comm.pre_mul_sum(2, "float32"),
        lambda: comm.register(x),
        plan,
    ]
    for call in calls:
        with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
            call()
    with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"), nccl.group():
        comm.all_reduce(x)
    assert comm.async_error() is None
    assert comm.ready
    assert comm.memory_stats().suspended
    assert comm.handle
    comm.resume()
    plan()
    assert (rank.memory.get(x) == 4).all()
    comm.suspend()  # the end of the test closes a suspended communicator


@on_ranks(2, by="provider")
def test_shared_memory_is_not_suspended(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommSuspend")
    with rank.communicator(config=nccl.Config(split_share=1)) as parent:
        with parent.split(0) as child:
            for comm in (parent, child):
                with pytest.raises(ValueError, match=r"split_share"):
                    comm.suspend()
        parent.suspend()
        parent.resume()
