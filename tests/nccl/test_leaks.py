"""Proves that communicators, streams, events and operators release all their resources: file
descriptors, threads, shared memory, entries in /dev/shm, and memory.
"""

from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
import pytest

from pynccl import nccl
from tests.support import holdings, shared_memory
from tests.support.blocking import in_threads, wait_until
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _alone(provider: str, times: int) -> None:
    for number in range(times):
        comm = nccl.Communicator(1, nccl.get_unique_id(provider), 0, provider=provider)
        array = np.ones(10)
        comm.all_reduce(array)
        if number % 3 == 0:
            comm.split(0).close()
        comm.abort() if number % 5 == 0 else comm.close()


@on_ranks(1, fresh=True)
def test_communicators_of_one_rank(rank: Rank) -> None:
    _alone(rank.provider, 20)
    before, memory = holdings.count(), _resident()
    _alone(rank.provider, 600)
    holdings.check(before)
    assert _resident() - memory < 16 << 20


def _pair(ids: list[bytes], rank: int) -> None:
    for number, unique_id in enumerate(ids):
        comm = nccl.Communicator(2, unique_id, rank, provider="host")
        comm.all_reduce(np.ones(10 if number % 7 else 100_000))
        if number % 10 == 0:
            comm.split(rank).close()
        if number % 5 == 0:
            comm.abort()
        elif number % 5 == 1:
            comm.finalize()
            comm.close()
        else:
            comm.close()


def _paired_communicators(rank: Rank) -> None:
    in_threads(*(partial(_pair, rank.unique_ids[:20], number) for number in range(2)))
    before, memory = holdings.count(), _resident()
    in_threads(*(partial(_pair, rank.unique_ids[20:], number) for number in range(2)))
    holdings.check(before)
    assert _resident() - memory < 16 << 20


def test_communicators_of_two_threads(launch: Launcher) -> None:
    before = shared_memory.entries()
    launch(1, _paired_communicators, ids=420, fresh=True)
    assert not shared_memory.left_behind(before)


def _across_processes(rank: Rank) -> None:
    _pair(rank.unique_ids[:5], rank.rank)
    before = holdings.count()
    _pair(rank.unique_ids[5:], rank.rank)
    holdings.check(before)


def test_communicators_of_two_processes(launch: Launcher) -> None:
    before = shared_memory.entries()
    launch(2, _across_processes, ids=100, fresh=True)
    assert not shared_memory.left_behind(before)


@on_ranks(2, ids=5, fresh=True)
def test_communicators_that_were_refused(rank: Rank) -> None:
    def refuse(number: int) -> None:
        with pytest.raises(nccl.NcclError):
            nccl.Communicator(2 + rank.rank, rank.unique_ids[number], rank.rank, provider="host")

    refuse(0)
    time.sleep(0.1)
    before = holdings.count()
    for number in range(1, 5):
        refuse(number)
    # A rank that refused answers late ranks for a while; its threads and sockets then end.
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
    before, memory = holdings.count(), _resident()
    for _ in range(300):
        use()
    holdings.check(before)
    assert _resident() - memory < 16 << 20
