"""Proves that a deadlock between ranks becomes an error that shows which rank waits for which,
across communicators, messages, streams and threads, and that programs with long pauses in all
threads do not cause it.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import PAGE
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_NAMED_WITHIN = 10.0  # seconds, on a busy machine; the check runs after one second
_LARGE = 1 << 21  # elements; such a send waits for its receiver


def _small() -> np.ndarray:
    return np.ones(4, np.float32)


def _large() -> np.ndarray:
    return np.ones(_LARGE, np.float32)


class Pair:
    """Two communicators in one order, reversed on odd ranks."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank.rank
        self.nranks = rank.nranks
        self.peer = (rank.rank + 1) % rank.nranks
        self.a, self.b = (
            rank.communicator(i, config=nccl.Config(comm_name="AB"[i])) for i in (0, 1)
        )
        self.first, self.second = (self.a, self.b) if rank.rank % 2 == 0 else (self.b, self.a)
        for comm in (self.a, self.b):
            comm.all_reduce(_small())
        self.new_stream = rank.stream
        self.new_event = rank.event


def _orders(pair: Pair) -> None:
    pair.first.all_reduce(_small())
    pair.second.all_reduce(_small())


def _orders_on_a_stream(pair: Pair) -> None:
    stream = pair.new_stream()
    array = _large()
    pair.first.all_reduce(array, stream=stream)
    pair.second.all_reduce(array, stream=stream)
    stream.synchronize()


def _orders_on_two_streams(pair: Pair) -> None:
    streams = {id(comm): pair.new_stream() for comm in (pair.a, pair.b)}
    first, second = streams[id(pair.first)], streams[id(pair.second)]
    event, array = pair.new_event(), _small()
    pair.first.all_reduce(array, stream=first)
    event.record(first)
    second.wait(event)
    pair.second.all_reduce(array, stream=second)
    second.synchronize()


def _orders_in_graphs(pair: Pair) -> None:
    stream = pair.new_stream()
    array = _small()
    with nccl.capture(stream) as graph:
        pair.first.all_reduce(array, stream=stream)
        pair.second.all_reduce(array, stream=stream)
    graph.launch(stream)
    stream.synchronize()


def _receives(pair: Pair) -> None:
    pair.a.recv(_small(), pair.peer)


def _sends(pair: Pair) -> None:
    pair.a.send(_large(), pair.peer)


def _send_and_collective(pair: Pair) -> None:
    if pair.rank == 0:
        pair.a.send(_large(), pair.peer)
    else:
        pair.a.all_reduce(_small())


def _missing_message(pair: Pair) -> None:
    with nccl.group():
        pair.a.send(_small(), pair.peer)
        if pair.rank == 0:
            pair.a.recv(_small(), pair.peer)
            pair.a.recv(_small(), pair.peer)
        else:
            pair.a.recv(_small(), pair.peer)
    pair.a.all_reduce(_small())


def _registration(pair: Pair) -> None:
    if pair.rank == 0:
        pair.a.register_window(pair.a.mem_alloc(PAGE))
    else:
        pair.b.all_reduce(_small())


def _split(pair: Pair) -> None:
    if pair.rank == 0:
        pair.a.split(0)
    else:
        pair.b.all_reduce(_small())


def _signal(pair: Pair) -> None:
    pair.a.register_window(pair.a.mem_alloc(PAGE))
    if pair.rank == 0:
        pair.a.wait_signal(pair.peer)
    else:
        pair.b.all_reduce(_small())


# The calls of all ranks, their number, and the waits of rank 0 and others named in the error.
_DEADLOCKS: dict[str, tuple[Callable[[Pair], None], int, tuple[str, ...]]] = {
    "orders": (
        _orders,
        2,
        ("ncclAllReduce.* of communicator A", "ncclAllReduce.* of communicator B"),
    ),
    "orders on a stream": (_orders_on_a_stream, 2, ("communicator A", "communicator B")),
    "orders on two streams": (_orders_on_two_streams, 2, ("communicator A", "communicator B")),
    "orders in graphs": (_orders_in_graphs, 2, ("communicator A", "communicator B")),
    "receives": (_receives, 2, ("ncclRecv",)),
    "receives of three": (_receives, 3, ("for rank 0", "for rank 1", "for rank 2")),
    "sends": (_sends, 2, ("ncclSend",)),
    "sends of three": (_sends, 3, ("for rank 0", "for rank 1", "for rank 2")),
    "send and collective": (_send_and_collective, 2, ("ncclSend", "ncclAllReduce")),
    "missing message": (_missing_message, 2, ("ncclRecv", "ncclAllReduce")),
    "registration": (_registration, 2, ("communicator A", "ncclAllReduce")),
    "split": (_split, 2, ("ncclCommSplit", "ncclAllReduce")),
    "signal": (_signal, 2, ("ncclWaitSignal", "ncclAllReduce")),
}


def _deadlock(rank: Rank, what: str) -> str:
    pair = Pair(rank)
    began = time.monotonic()
    with pytest.raises(nccl.NcclError, match="deadlock: ") as raised:
        _DEADLOCKS[what][0](pair)
    assert time.monotonic() - began < _NAMED_WITHIN, raised.value
    for comm in (pair.a, pair.b):
        comm.abort()
    return str(raised.value)


@pytest.mark.parametrize(
    ("what", "threads"),
    [
        (what, threads)
        for number, what in enumerate(_DEADLOCKS)
        for threads in (False, True)
        if FULL or what == "orders" or threads == bool(number % 2)
    ],
)
def test_a_deadlock_is_named(launch: Launcher, what: str, threads: bool) -> None:
    _, nranks, parts = _DEADLOCKS[what]
    texts = launch(nranks, _deadlock, what, threads=threads, ids=2, timeout=20)
    for text in texts:
        assert "deadlock: rank 0 (" in text, text  # on every rank
        for part in (*parts, "rank 0", "rank 1"):
            assert re.search(part, text), (part, text)


def _first_calls(rank: Rank, deadlock: bool, blocking: bool, grouped: bool) -> None:
    """Each rank calls a different communicator first, on a separate stream."""
    config = nccl.Config(blocking=blocking)
    together, *comms = (rank.communicator(i, config=config) for i in range(3))
    for comm in (together, *comms):
        comm.wait_ready(20)
    together.all_reduce(_small())
    streams, arrays = [rank.stream(), rank.stream()], [_small(), _small()]
    with pytest.raises(nccl.NcclError, match="deadlock: ") if deadlock else nullcontext():
        for i in (rank.rank, 1 - rank.rank):
            with nccl.group() if grouped else nullcontext():
                comms[i].all_reduce(arrays[i], stream=streams[i])
    for comm, stream, array in zip(comms, streams, arrays, strict=True):
        if deadlock:
            comm.abort()
        else:
            stream.synchronize()
            assert (array == 2).all()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("strict", "blocking", "later"),
    [(True, True, True), (True, True, False), (True, False, True), (False, True, True)],
)
def test_first_calls_wait_for_each_other(
    launch: Launcher, strict: bool, blocking: bool, later: bool, grouped: bool
) -> None:
    """In NCCL, those of blocking communicators return when the ranks are connected, unless
    NCCL_RUNTIME_CONNECT=0 connects them when they are created.
    """
    env = {"HOSTNCCL_STRICT": str(int(strict)), "HOSTNCCL_CONNECT": "1"}
    env["NCCL_RUNTIME_CONNECT"] = str(int(later))
    deadlock = strict and blocking and later
    launch(2, _first_calls, deadlock, blocking, grouped, ids=3, env=env, timeout=20)


def _ring_of_pairs(rank: Rank) -> str:
    """Each rank shares a communicator with each of its neighbours only."""
    n, own = rank.nranks, rank.rank
    config = nccl.Config(timeout=40)
    halves = {}
    for first in range(n):  # in an order in which all can be created
        members = (first, (first + 1) % n)
        if own in members:
            halves[first] = nccl.Communicator(
                2, rank.unique_ids[first], members.index(own), config=config
            )
    with pytest.raises(nccl.NcclError, match="deadlock: ") as raised:
        halves[own].recv(_small(), 1)
    for comm in halves.values():
        comm.abort()
    return str(raised.value)


def test_ranks_without_a_common_communicator(launch: Launcher) -> None:
    texts = launch(4, _ring_of_pairs, ids=4, timeout=20)
    assert all(text.count("waits for rank 1 in ncclRecv") == 4 for text in texts), texts


@on_ranks(2, ids=2, timeout=20)
def test_communicators_in_which_no_rank_waits_remain(rank: Rank) -> None:
    other, array = rank.communicator(1), _small()
    other.all_reduce(array)
    with pytest.raises(nccl.NcclError, match="deadlock: "):
        rank.comm.recv(_small(), 1 - rank.rank)
    rank.comm.abort()
    other.all_reduce(array)
    assert (array == 4).all()
    other.close()


@on_ranks(3, timeout=20)
def test_other_ranks_get_the_error(rank: Rank) -> None:
    """Rank 2 is not involved in the others' waits, and is not late."""
    comm = rank.comm
    comm.all_reduce(_small())
    if rank.rank < 2:
        with pytest.raises(nccl.NcclError, match="deadlock: "):
            comm.recv(_small(), 1 - rank.rank)
    else:
        time.sleep(2)
        with pytest.raises(nccl.NcclError, match="deadlock: "):
            comm.all_reduce(_small())
    comm.abort()


@on_ranks(2, ids=2, timeout=20)
def test_a_late_thread_is_not_a_deadlock(rank: Rank) -> None:
    """The main threads wait for a late thread of the other rank."""
    comms = [rank.communicator(i) for i in (0, 1)]
    own, other = comms[rank.rank], comms[1 - rank.rank]

    def work() -> None:
        other.all_reduce(_small())
        time.sleep(2)
        other.all_reduce(_small())

    with ThreadPoolExecutor(1) as pool:
        worked = pool.submit(work)
        own.all_reduce(_small())
        own.all_reduce(_small())
        worked.result()


@on_ranks(2, fresh=True, env={"HOSTNCCL_DEADLOCK_MS": "0"}, timeout=20)
def test_the_detection_can_be_disabled(rank: Rank) -> None:
    comm = rank.communicator()
    comm.all_reduce(_small())
    comm.timeout = 2
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)):
        comm.recv(_small(), 1 - rank.rank)
    comm.abort()


def _pauses(rank: Rank, seed: int, seconds: float) -> None:
    """Two threads with a communicator and a stream each, and pauses of all kinds."""
    comms = [rank.communicator(i) for i in (0, 1)]

    def work(index: int) -> None:
        comm = comms[index]
        own = random.Random(f"{seed} {index} {rank.rank}")
        common = random.Random(f"{seed} {index}")
        stream, array = rank.stream(), np.ones(common.choice((8, 100_000)), np.float32)
        received = np.ones_like(array)
        end = time.monotonic() + seconds
        while True:
            time.sleep(own.choice((0, 0, 0.01, 0.1, 0.15)))
            for _ in range(common.randrange(4)):
                comm.all_reduce(array, nccl.MAX, stream=stream)
                if own.random() < 0.3:
                    time.sleep(0.08)
            if own.random() < 0.5:
                stream.synchronize()
            with nccl.group():
                comm.send(array, (rank.rank + 1) % rank.nranks, stream=stream)
                comm.recv(received, (rank.rank - 1) % rank.nranks, stream=stream)
            goes_on = np.array([time.monotonic() < end], np.int32)
            comm.all_reduce(goes_on, nccl.MIN)
            if not goes_on[0]:
                break
        stream.synchronize()
        assert (array == 1).all()
        assert (received == 1).all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))
    for comm in comms:
        assert comm.async_error() is None
        comm.close()


@pytest.mark.parametrize("seed", range(3 if FULL else 1))
def test_pauses_are_not_deadlocks(launch: Launcher, seed: int) -> None:
    """With 30 ms instead of a second, so that checks are frequent."""
    env = {"HOSTNCCL_DEADLOCK_MS": "30"}
    launch(3, _pauses, seed, 4.0, fresh=True, ids=2, env=env, timeout=60)
