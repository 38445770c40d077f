"""Proves that sends and receives in a group cannot deadlock in any order, that groups nest and fuse
several communicators and several ranks of a thread, and that an exception or a mistake leaves
nothing behind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_SIZES = (0, 1, 5, 1000, 8192, 8193, 40_000, 300_000)  # bytes, around and past hostnccl's cells


@dataclass(frozen=True)
class _Message:
    number: int
    source: int
    target: int
    size: int

    def contents(self) -> np.ndarray:
        return np.random.default_rng([self.number, self.size]).integers(0, 256, self.size, np.uint8)


def test_small_messages_wait_for_no_receive(pair: list[nccl.Communicator]) -> None:
    """Up to 8 KiB, even between ranks of one process, which could read each other's memory."""
    sent, received = np.ones(8192, np.uint8), np.zeros(8192, np.uint8)
    pair[0].send(sent, 1)
    sent[:] = 2
    pair[1].recv(received, 0)
    assert (received == 1).all()


def _plan(seed: int, nranks: int) -> list[list[_Message]]:
    """Groups of messages between random ranks, the same plan on every rank."""
    random_ = random.Random(seed)
    number = 0
    groups = []
    for _ in range(6):
        group = []
        for _ in range(random_.randrange(1, 6 * nranks)):
            number += 1
            pair = random_.randrange(nranks), random_.randrange(nranks)
            group.append(_Message(number, *pair, random_.choice(_SIZES)))
        groups.append(group)
    return groups


def _exchange(rank: Rank, seed: int) -> int:
    """Each rank calls its sends and receives in its own order, which is kept per pair only."""
    order = random.Random(seed * 1000 + rank.rank)
    memory, comm, stream = rank.memory, rank.comm, rank.stream()
    received = 0
    for group in _plan(seed, rank.nranks):
        queues: dict[tuple[str, int], list[_Message]] = {}
        for message in group:
            if message.source == rank.rank:
                queues.setdefault(("send", message.target), []).append(message)
            if message.target == rank.rank:
                queues.setdefault(("recv", message.source), []).append(message)
        buffers = []
        depth = order.randrange(3)
        with nccl.group():
            for _ in range(depth):
                nccl.group().__enter__()
            while queues:
                key = order.choice(list(queues))
                message = queues[key].pop(0)
                if not queues[key]:
                    del queues[key]
                call, peer = key
                contents = message.contents()
                if call == "recv":
                    contents = np.zeros_like(contents)
                buffer = memory.put(contents)
                buffers.append((call, message, buffer))
                getattr(comm, call)(buffer, peer, stream=stream if seed % 2 else None)
            for _ in range(depth):
                nccl.group().__exit__(None, None, None)
        stream.synchronize()
        for call, message, buffer in buffers:
            np.testing.assert_array_equal(
                memory.get(buffer), message.contents(), err_msg=f"seed {seed}: {call} {message}"
            )
            received += call == "recv"
    return received


def _exchange_all(rank: Rank, *seeds: int) -> int:
    return sum(_exchange(rank, seed) for seed in seeds)


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, False), (5, False), (4, True)])
def test_random_messages(launch: Launcher, provider: str, nranks: int, threads: bool) -> None:
    seeds = range(8 if FULL else 2 if provider == "cuda" or nranks == 1 else 4)
    received = launch(nranks, _exchange_all, *seeds, provider=provider, threads=threads)
    assert sum(received) == sum(len(group) for seed in seeds for group in _plan(seed, nranks))


def test_random_messages_of_many_ranks(launch: Launcher, provider: str) -> None:
    gpu.spare(provider, 16)
    launch(16, _exchange_all, *([200, 201] if FULL else [200]), provider=provider)


@pytest.mark.parametrize(
    "env",
    [
        {"HOSTNCCL_CMA": "0"},
        {"HOSTNCCL_CMA": "0", "HOSTNCCL_STREAM_BYTES": "0"},
        {"HOSTNCCL_DIRECT_MESSAGE_BYTES": "0"},
    ],
)
def test_random_messages_read_or_not(launch: Launcher, env: dict[str, str]) -> None:
    """Hostnccl with and without reading other processes' memory, or with copies past the caches."""
    launch(3, _exchange, 300, env=env)


@on_ranks(2, by="provider")
def test_send_and_receive(rank: Rank) -> None:
    """Without a group: one rank sends, the other receives, every dtype, every length."""
    from tests.support import dtypes

    peer = 1 - rank.rank
    for name in (name for name in dtypes.ALL if name not in gpu.without(rank.provider)):
        for count in (0, 1, 7, 1009, 50_021):
            for sender in (0, 1):
                contents = dtypes.sample(name, count, np.random.default_rng(count))
                if rank.rank == sender:
                    rank.comm.send(rank.memory.put(contents), peer)
                else:
                    buffer = rank.memory.put(np.zeros_like(contents))
                    rank.comm.recv(buffer, peer)
                    got = rank.memory.get(buffer)
                    assert got.tobytes() == contents.tobytes(), f"{name} count={count}"


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="provider threads", ids=3)
def test_collectives_and_messages_in_one_group(rank: Rank) -> None:
    """Of three communicators, which each rank calls in its own order."""
    comms = [rank.communicator(number) for number in range(3)]
    memory, peer = rank.memory, (rank.rank + 1) % rank.nranks
    before, order = (rank.rank - 1) % rank.nranks, random.Random(rank.rank)
    for _ in range(5):
        reduced = [memory.put(np.full(1000 * (n + 1), rank.rank + n, np.float32)) for n in range(3)]
        sent = memory.put(np.full(777, rank.rank, np.int32))
        got = memory.put(np.full(777, -1, np.int32))
        gathered = memory.put(np.zeros(3 * rank.nranks, np.int64))
        own = memory.put(np.full(3, rank.rank, np.int64))
        with nccl.group():
            comms[1].recv(got, before)
            for number in order.sample(range(3), 3):
                comms[number].all_reduce(reduced[number])
            comms[1].send(sent, peer)
            comms[2].all_gather(own, out=gathered)
        for number, buffer in enumerate(reduced):
            total = sum(r + number for r in range(rank.nranks))
            assert (memory.get(buffer) == total).all()
        assert (memory.get(got) == before).all()
        assert (memory.get(gathered) == np.repeat(np.arange(rank.nranks), 3)).all()
    for comm in comms:
        comm.close()


@on_ranks(2, by="provider")
def test_an_exception_inside_sends_nothing(rank: Rank) -> None:
    memory, comm, peer = rank.memory, rank.comm, 1 - rank.rank
    sent, got = memory.put(np.full(5, rank.rank, np.int32)), memory.put(np.full(5, -1, np.int32))
    with pytest.raises(KeyError), nccl.group():  # noqa: PT012
        comm.send(sent, peer)
        comm.recv(got, peer)
        comm.all_reduce(sent)
        raise KeyError
    assert (memory.get(got) == -1).all()
    assert (memory.get(sent) == rank.rank).all()
    # An exception that is handled inside drops the inner group only.
    with nccl.group():
        comm.recv(got, peer)
        try:
            with nccl.group():
                comm.all_reduce(sent)
                raise KeyError
        except KeyError:
            pass
        comm.send(sent, peer)
    assert (memory.get(got) == peer).all()
    # A wrong argument is refused at its call and drops the group.
    with pytest.raises(ValueError, match="peer: rank 2 is out of range"), nccl.group():  # noqa: PT012
        comm.all_reduce(sent)
        comm.send(sent, 2)
    comm.all_reduce(sent)
    assert (memory.get(sent) == 1).all()


@on_ranks(2)
def test_send_to_self_without_a_receive_is_an_error(rank: Rank) -> None:
    """Not a hang, and the communicator works afterwards."""
    comm, buffer = rank.comm, np.zeros(3)
    for call, text in (
        (comm.send, "1 more sends to itself than receives"),
        (comm.recv, "1 more receives from itself than sends"),
    ):
        with pytest.raises(nccl.NcclInvalidUsageError, match="itself"):
            call(buffer, rank.rank)
        with pytest.raises(nccl.NcclInvalidUsageError, match=text), nccl.group():
            call(buffer, rank.rank)
    comm.all_reduce(buffer)


@pytest.mark.parametrize("on_thread", [False, True])
def test_a_group_that_is_captured_in_part(comm: nccl.Communicator, on_thread: bool) -> None:
    captured, other = nccl.Stream("host"), nccl.Stream("host")
    with nccl.plan() as both:
        comm.all_reduce(np.ones(4), stream=captured)
        comm.all_reduce(np.ones(4), stream=0 if on_thread else other)
    text = "some streams of a group are capturing and others are not"
    with nccl.capture(captured), pytest.raises(nccl.NcclInvalidUsageError, match=text):
        both()


def _drive(rank: Rank, comms: list[nccl.Communicator]) -> None:
    """All collectives of several ranks of one thread: each call on all of them in one group."""
    memory, nranks = rank.memory, len(comms)
    own = [memory.put(np.full(1000, number, np.float32)) for number in range(nranks)]
    out = [memory.put(np.zeros(1000, np.float32)) for _ in comms]
    gathered = [memory.put(np.zeros(1000 * nranks, np.float32)) for _ in comms]
    with nccl.group():
        for number, comm in enumerate(comms):
            comm.all_reduce(own[number], out=out[number])
            comm.all_gather(own[number], out=gathered[number])
    for number in range(nranks):
        assert (memory.get(out[number]) == sum(range(nranks))).all()
        assert (memory.get(gathered[number]) == np.repeat(np.arange(nranks), 1000)).all()
    with nccl.group():
        for number, comm in enumerate(comms):
            comm.send(own[number], (number + 1) % nranks)
        for number, comm in enumerate(comms):
            comm.recv(out[number], (number - 1) % nranks)
    for number in range(nranks):
        assert (memory.get(out[number]) == (number - 1) % nranks).all()


@pytest.mark.parametrize("nranks", [1, 4, 7])
@on_ranks(1)
def test_many_ranks_in_one_thread(rank: Rank, nranks: int) -> None:
    with nccl.group():
        comms = [
            nccl.Communicator(
                nranks, rank.unique_ids[0], number, provider=rank.provider, device=rank.device
            )
            for number in range(nranks)
        ]
        assert all("not ready" in repr(comm) for comm in comms)
        with pytest.raises(ValueError, match="leave the group first"):
            comms[0].all_reduce(np.zeros(1))
    assert [comm.rank for comm in comms] == list(range(nranks))
    _drive(rank, comms)
    with nccl.group():
        halves = [comm.split(number % 2, -number) for number, comm in enumerate(comms)]
    # The keys reverse the order.
    assert [half.nranks for half in halves if half] == [
        len(comms[n % 2 :: 2]) for n in range(nranks)
    ]
    assert halves[0] is not None
    assert halves[0].rank == halves[0].nranks - 1
    _drive(rank, [half for half in halves if half][0::2][::-1])
    for comm in [*comms, *halves]:
        if comm is not None:
            comm.close()


@on_ranks(1)
def test_init_all(rank: Rank) -> None:
    comms = nccl.Communicator.init_all(5, provider=rank.provider)
    assert [(comm.rank, comm.nranks) for comm in comms] == [(number, 5) for number in range(5)]
    _drive(rank, comms)
    for comm in comms:
        comm.close()


@on_ranks(2)
def test_the_next_group_starts_empty(rank: Rank) -> None:
    """Even after an error that only the library detects, which the end of the group raises."""
    comm, buffer = rank.comm, np.ones(4)
    with pytest.raises(nccl.NcclInvalidUsageError), nccl.group():
        comm.send(buffer, rank.rank)
    with nccl.group():
        pass
    with nccl.group():
        comm.all_reduce(buffer)
    assert (buffer == rank.nranks).all()
    with pytest.raises(RuntimeError, match="not entered"):
        nccl.group().__exit__(None, None, None)


@on_ranks(2, threads=True)
def test_a_failure_of_the_calling_thread_is_one_of_its_streams(rank: Rank) -> None:
    comm, stream = rank.comm, nccl.Stream("host")
    errors = (nccl.NcclInvalidUsageError, nccl.NcclRemoteError)
    with pytest.raises(errors), nccl.group():  # noqa: PT012
        comm.all_reduce(np.ones(4 + comm.rank))
        comm.all_reduce(np.ones(4), stream=stream)
    with pytest.raises(errors):
        stream.synchronize()
    comm.abort()


@on_ranks(2, threads=True, ids=2)
def test_a_failure_of_a_stream_is_raised_by_the_calling_thread(rank: Rank) -> None:
    """A group of both runs after the failure, and still completes its operations."""
    comm, other, stream = rank.comm, rank.communicator(1), nccl.Stream("host")
    other.all_reduce(np.ones(4 + rank.rank), stream=stream)
    arrays = [np.ones(4), np.ones(4)]
    with pytest.raises(nccl.NcclError, match="different calls"), nccl.group():  # noqa: PT012
        comm.all_reduce(arrays[0])
        comm.all_reduce(arrays[1], stream=stream)
    assert np.array_equal(arrays, np.full((2, 4), 2.0))
    other.abort()


@on_ranks(2)
def test_a_failure_on_one_of_the_streams_is_one_of_all(rank: Rank) -> None:
    """The operations of all streams run on the first one."""
    comm, streams = rank.comm, [nccl.Stream("host"), nccl.Stream("host")]
    with nccl.group():
        for stream in streams:
            comm.all_reduce(np.ones(4 + rank.rank), stream=stream)
    for stream in streams:
        with pytest.raises(nccl.NcclError, match="different calls"):
            stream.synchronize()
    comm.abort()


@pytest.mark.parametrize("end", ["ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"])
@pytest.mark.parametrize("pending", ["ncclAllReduce", "ncclCommSplit"])
def test_a_communicator_in_use_by_a_group_is_not_ended(pending: str, end: str) -> None:
    """Checked by hostnccl itself. The objects of pynccl.nccl refuse it before."""
    library = raw.load("host")
    comm = library.ncclCommInitRank(1, library.ncclGetUniqueId(), 0)
    other = library.ncclCommInitRank(1, library.ncclGetUniqueId(), 0)
    x = np.ones(4, np.float32)
    at = x.ctypes.data
    library.ncclGroupStart()
    if pending == "ncclCommSplit":
        library.ncclCommSplit(comm, 0, 0, None)
    else:
        library.ncclAllReduce(at, at, 4, raw.ncclFloat32, raw.ncclSum, comm, 0)
    library.ncclCommDestroy(other)
    message = f"{end} on a communicator that the open group uses"
    with pytest.raises(nccl.NcclInvalidUsageError, match=message):
        getattr(library, end)(comm)
    with pytest.raises(nccl.NcclInvalidUsageError, match=message):
        library.ncclGroupEnd()
    library.ncclCommDestroy(comm)
