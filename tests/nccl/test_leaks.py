"""Proves that communicators, streams, events and operators release all their resources: file
descriptors, threads, shared memory, entries in /dev/shm, and memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from pynccl import nccl
from tests.support import holdings, shared_memory
from tests.support.blocking import in_threads, wait_until
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@contextlib.contextmanager
def _no_leak() -> Iterator[None]:
    before, memory = holdings.count(), holdings.resident()
    yield
    holdings.check(before)
    assert holdings.resident() - memory < 16 << 20


def _use(ids: list[bytes], rank: int, nranks: int) -> None:
    """Create a communicator for each id, and end it in one of several ways."""
    for number, unique_id in enumerate(ids):
        comm = nccl.Communicator(nranks, unique_id, rank, provider="host")
        comm.all_reduce(np.ones(10 if number % 7 else 100_000))
        if number % 3 == 0:
            comm.split(rank).close()
        if number % 5 == 0:
            comm.abort()
        elif number % 5 == 1:
            comm.finalize()
        comm.close()


def _communicators(rank: Rank, threads: int) -> None:
    """Of this process alone, of threads or, without any, of the ranks' processes."""

    def use(ids: list[bytes]) -> None:
        if threads:
            in_threads(*(partial(_use, ids, number, threads) for number in range(threads)))
        else:
            _use(ids, rank.rank, rank.nranks)

    use(rank.unique_ids[:20])
    with _no_leak():
        use(rank.unique_ids[20:])


@pytest.mark.parametrize(
    ("nranks", "threads", "ids"), [(1, 0, 420), (1, 2, 420), (2, 0, 120)], ids=str
)
def test_communicators(launch: Launcher, nranks: int, threads: int, ids: int) -> None:
    before = shared_memory.entries()
    launch(nranks, _communicators, threads, ids=ids, fresh=True)
    assert not shared_memory.left_behind(before)


@on_ranks(2, ids=5, fresh=True)
def test_refused_communicators(rank: Rank) -> None:
    def refuse(number: int) -> None:
        with pytest.raises(nccl.NcclError):
            nccl.Communicator(2 + rank.rank, rank.unique_ids[number], rank.rank, provider="host")

    refuse(0)
    time.sleep(0.1)
    before = holdings.count()
    for number in range(1, 5):
        refuse(number)
    # A rank that refused answers late ranks for a while, with threads and sockets.
    wait_until(lambda: all(now <= before[name] for name, now in holdings.count().items()), 30)


@on_ranks(1, fresh=True)
def test_streams_events_operators_and_buffers(rank: Rank) -> None:
    comm = rank.comm
    array = np.ones(4)

    def use() -> None:
        stream, event = rank.stream(), rank.event()
        comm.all_reduce(array, nccl.MAX, stream=stream)
        event.record(stream)
        stream.synchronize()
        op = comm.pre_mul_sum(1.0, "float64")
        comm.all_reduce(array, op)
        buffer = comm.mem_alloc(100_000)
        comm.register(buffer).close()
        with pytest.raises(ValueError, match="peer"):
            comm.send(array, 77)

    for _ in range(10):
        use()
    with _no_leak():
        for _ in range(300):
            use()
