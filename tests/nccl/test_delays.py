"""Proves that programs with the right waits give exact results with any timing, and that the mode
which delays hostnccl's queues at random (HOSTNCCL_DELAY_SEED) finds a missing wait.

Each seed creates another random program: operations of three communicators, functions, groups,
graphs and asynchronous work on four streams and the calling thread, over shared buffers. Steps on
different streams that depend on each other are ordered by events, and the result is compared with
the same program run step by step in NumPy. The CUDA double runs on hostnccl's queues, so the mode
delays its streams too; on a GPU the variable has no effect.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

from pynccl import nccl
from pynccl.mirror.group.comm_stream import Call, CommStream
from tests.support import gpu
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

SEEDS = 200 if FULL else 60
STEPS = 14
COUNT = 301
BUFFERS = 5
STREAMS = 3
COMMUNICATORS = 3


@contextmanager
def delays(rank: Rank, seed: int) -> Iterator[None]:
    """Enable the mode for the streams created inside."""
    os.environ["HOSTNCCL_DELAY_SEED"] = str(seed)
    try:
        yield
    finally:
        no_delays(rank)


def no_delays(rank: Rank) -> None:
    os.environ["HOSTNCCL_DELAY_SEED"] = "0"
    rank.stream().close()  # reads the variable: nothing is delayed from here on


@dataclass
class Buffer:
    """An array, and the events after which it may be read or written."""

    array: Any
    written: nccl.Event | None = None
    read: list[nccl.Event] = field(default_factory=list)


class Program:
    """A random program as run by one rank, and its model: the arrays of all ranks."""

    def __init__(self, rank: Rank, comms: list[nccl.Communicator], seed: int) -> None:
        self.rank, self.comms = rank, comms
        self.random = random.Random(seed)
        self.streams = [rank.stream() for _ in range(STREAMS)]
        device = torch.device("cpu" if rank.device is None else f"cuda:{rank.device}")
        self.comm_streams = [CommStream(comm, device, timedelta(minutes=1)) for comm in comms]
        start = [
            [np.arange(COUNT) % 7 + 3.0 * r + i for i in range(BUFFERS)] for r in range(rank.nranks)
        ]
        self.model = start
        self.buffers = [Buffer(rank.memory.put(array)) for array in start[rank.rank]]

    def run(self) -> None:
        steps = (self.collective, self.collective, self.function, self.ring, self.graph, self.work)
        for _ in range(STEPS):
            self.random.choice(steps)()
        for buffer in self.buffers:
            for event in (buffer.written, *buffer.read):
                if event is not None:
                    event.synchronize()
        for buffer, wanted in zip(self.buffers, self.model[self.rank.rank], strict=True):
            np.testing.assert_array_equal(self.rank.memory.get(buffer.array), wanted)
        for stream in self.streams:
            stream.synchronize()
            stream.close()

    def draw(self, kind: int) -> tuple[int, int]:
        """Two different buffers; the second is written."""
        source, target = self.random.sample(range(BUFFERS), 2)
        return source, target if kind else source

    def before(self, stream: nccl.Stream | None, source: int, target: int) -> None:
        """Wait for the writer of the source, and for all users of the target."""
        needed = [self.buffers[source].written, self.buffers[target].written]
        for event in (*needed, *self.buffers[target].read):
            if event is None:
                continue
            if stream is None:
                event.synchronize()
            else:
                stream.wait(event)

    def after(self, stream: nccl.Stream | None, source: int, target: int) -> None:
        event = self.rank.event()
        event.record(0 if stream is None else stream)
        self.buffers[source].read.append(event)
        self.buffers[target].written = event
        self.buffers[target].read = []

    def place(self) -> nccl.Stream | None:
        """A stream, or the calling thread."""
        return self.random.choice([*self.streams, None])

    def reduce(self, source: int, target: int) -> None:
        """The result of an all_reduce with MAX; values stay small."""
        result = np.max([arrays[source] for arrays in self.model], axis=0)
        for arrays in self.model:
            arrays[target] = result.copy()

    def collective(self) -> None:
        source, target = self.draw(self.random.randrange(2))
        stream, comm = self.place(), self.random.choice(self.comms)
        average, root = self.random.random() < 0.5, self.random.randrange(self.rank.nranks)
        into = self.buffers[target].array
        self.before(stream, source, target)
        if average:
            comm.all_reduce(self.buffers[source].array, nccl.MAX, out=into, stream=stream)
            self.reduce(source, target)
        else:
            comm.broadcast(self.buffers[source].array, root, out=into, stream=stream)
            result = self.model[root][source]
            for arrays in self.model:
                arrays[target] = result.copy()
        self.after(stream, source, target)

    def add(self, stream: nccl.Stream, source: int, target: int) -> None:
        """Add one buffer to another on a stream: by a function, on a device by kernels."""
        read, write = self.buffers[source].array, self.buffers[target].array

        def function() -> None:
            write[:] = (write + read) % 1000.0

        if self.rank.device is None:
            stream.launch(function)
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle, self.rank.device)):
            write.add_(read).remainder_(1000.0)

    def added(self, source: int, target: int) -> None:
        for arrays in self.model:
            arrays[target] = (arrays[target] + arrays[source]) % 1000.0

    def function(self) -> None:
        source, target = self.draw(1)
        stream = self.random.choice(self.streams)
        self.before(stream, source, target)
        self.add(stream, source, target)
        self.added(source, target)
        self.after(stream, source, target)

    def ring(self) -> None:
        source, target = self.draw(1)
        stream, comm = self.place(), self.random.choice(self.comms)
        nranks = self.rank.nranks
        self.before(stream, source, target)
        with nccl.group():
            peer = (self.rank.rank + 1) % nranks
            comm.send(self.buffers[source].array, peer, stream=stream)
            peer = (self.rank.rank - 1) % nranks
            comm.recv(self.buffers[target].array, peer, stream=stream)
        sent = [arrays[source].copy() for arrays in self.model]
        for r, arrays in enumerate(self.model):
            arrays[target] = sent[r - 1]
        self.after(stream, source, target)

    def graph(self) -> None:
        """A function on a fork, then a collective that needs it; launched twice."""
        source, target = self.draw(1)
        stream, fork = self.random.sample(self.streams, 2)
        comm = self.random.choice(self.comms)
        forked, joined = self.rank.event(), self.rank.event()
        array = self.buffers[target].array
        with nccl.capture(stream) as graph:
            forked.record(stream)
            fork.wait(forked)
            self.add(fork, source, target)
            joined.record(fork)
            stream.wait(joined)
            comm.all_reduce(array, nccl.MAX)
        for _ in range(2):
            self.added(source, target)
            self.reduce(target, target)
        where = self.random.choice(self.streams)
        self.before(where, source, target)
        graph.launch(where)
        graph.launch(where)
        self.after(where, source, target)

    def work(self) -> None:
        """Like async_op=True: on a communicator's own stream, with a wait now or by event."""
        source, target = self.draw(1)
        comm_stream = self.random.choice(self.comm_streams)
        array, into = self.buffers[source].array, self.buffers[target].array

        def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
            comm.all_reduce(array, nccl.MAX, out=into, stream=stream)

        self.before(None, source, target)
        work = comm_stream.issue(Call("all_reduce", array, enqueue, [into], {}, async_op=True))
        self.reduce(source, target)
        if self.random.random() < 0.5:
            work.wait()
        self.after(comm_stream.stream, source, target)


def _communicators(rank: Rank) -> list[nccl.Communicator]:
    """Create connected communicators: the first call of a kind must not be in a capture."""
    if rank.device is not None:
        torch.cuda.set_device(rank.device)
    comms = [rank.communicator(i) for i in range(COMMUNICATORS)]
    buffer = rank.memory.put(np.zeros(COUNT))
    for comm in comms:
        comm.all_reduce(buffer, nccl.MAX)
    rank.memory.get(buffer)
    return comms


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@on_ranks(2, by="provider threads", ids=COMMUNICATORS, timeout=120)
def test_random_programs_are_exact_with_every_seed(rank: Rank, threads: bool) -> None:
    """Threads share the environment, and with it the seed."""
    comms = _communicators(rank)
    count = 20 if threads else min(SEEDS, gpu.most_cases(rank.provider, rank.nranks) or SEEDS)
    for seed in range(1, count + 1):
        if rank.rank == 0 or not threads:
            os.environ["HOSTNCCL_DELAY_SEED"] = str(seed)
        try:
            Program(rank, comms, seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        both = rank.memory.put(np.zeros(1))
        comms[0].all_reduce(both)
        rank.memory.get(both)
    no_delays(rank)
    for comm in comms:
        comm.close()


def race(rank: Rank, waits: bool) -> int:
    """The number of seeds out of 50 with a wrong result in a program that needs one wait."""
    first, second = (rank.communicator(i) for i in range(2))
    wrong = 0
    for seed in range(1, 51):
        with delays(rank, seed):
            a, b, event = rank.stream(), rank.stream(), rank.event()
            x, y = (rank.memory.put(np.full(COUNT, value)) for value in (1.0, 0.0))
            for _ in range(5):
                first.all_reduce(x, stream=a)
            if waits:
                event.record(a)
                b.wait(event)
            second.all_reduce(x, out=y, stream=b)
            a.synchronize()
            b.synchronize()
            wrong += not (rank.memory.get(y) == float(rank.nranks) ** 6).all()
            a.close()
            b.close()
    first.close()
    second.close()
    return wrong


def _reader(rank: Rank, waits: bool) -> int:
    """The same for the calling thread, which reads an array that a stream writes."""
    wrong = 0
    for seed in range(1, 51):
        with delays(rank, seed):
            stream, x = nccl.Stream("host"), np.zeros(COUNT)
            for _number in range(5):
                stream.launch(lambda x=x: x.__iadd__(1))
            if waits:
                stream.synchronize()
            wrong += not (x == 5).all()
            stream.synchronize()
            stream.close()
    return wrong


@pytest.mark.parametrize(("program", "nranks"), [(race, 2), (_reader, 1)])
def test_a_missing_wait_is_found_by_most_seeds(
    launch: Launcher, program: Callable[[Rank, bool], int], nranks: int
) -> None:
    assert max(launch(nranks, program, True, ids=2)) == 0
    assert min(launch(nranks, program, False, ids=2)) > 25


@on_ranks(1)
def test_a_malformed_seed(rank: Rank) -> None:
    os.environ["HOSTNCCL_DELAY_SEED"] = "x"
    try:
        with pytest.raises(nccl.DriverError):
            rank.stream()
    finally:
        del os.environ["HOSTNCCL_DELAY_SEED"]
    rank.stream().close()
