"""Recordings constructed for tests, of programs that never ran."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from pynccl.tools.trace.model import Operation, ProcessTrace
from pynccl.tools.trace.shape import ITEMSIZES, blocks
from tests.support.traces import arguments, communicator

__all__ = ["World", "generated"]

_BUFFER = 1 << 20  # bytes between two buffers


@dataclass
class World:
    """The recordings of several processes, all ranks of communicator "0".

    Attributes:
        traces: one per process.
        members: the processes of each communicator, by id, in rank order.
    """

    nranks: int
    traces: list[ProcessTrace] = field(init=False)
    members: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.traces = [
            ProcessTrace(rank, 1000 + rank, "node0", "boot", 0, False, 0, 0)
            for rank in range(self.nranks)
        ]
        self._sequences: Counter[tuple[int, str]] = Counter()
        self._numbers: Counter[tuple[object, ...]] = Counter()
        self._time = 0
        self._groups = 0
        self._buffers = 16
        self.communicator("0", list(range(self.nranks)))

    def communicator(self, id: str, processes: list[int], **fields: Any) -> str:  # noqa: ANN401
        """Create a communicator of some processes, and return its 16-digit id."""
        id = id.rjust(16, "0")
        self.members[id] = processes
        for rank, process in enumerate(processes):
            made = communicator(id, **{"rank": rank, "nranks": len(processes), **fields})
            self.traces[process].communicators[id, rank] = made
        return id

    def group(self) -> int:
        """The number of a new group."""
        self._groups += 1
        return self._groups

    def buffer(self) -> int:
        """The address of otherwise unused memory."""
        self._buffers += 1
        return self._buffers * _BUFFER

    def call(self, process: int, kind: str, comm: str = "0", **fields: Any) -> Operation:  # noqa: ANN401
        """Record an operation of one process."""
        comm = comm.rjust(16, "0")
        members = self.members[comm]
        values: dict[str, Any] = {
            **arguments(kind),
            "count": 8,
            "stream": 0,
            "thread": 1,
            "began": None,
            "ended": None,
            **fields,
        }
        self._sequences[process, comm] += 1
        message = kind in ("send", "recv")
        key = (process, comm, kind, values["peer"]) if message else (process, comm)
        number = None
        if "signal" not in kind:
            self._numbers[key] += 1
            number = self._numbers[key]
        self._time += 1000
        shape = blocks(kind, len(members), members.index(process), values["root"])
        size = values["count"] * ITEMSIZES[values["dtype"]]
        own = {
            "sendbuff": self.buffer() if shape.sent and "sendbuff" not in values else 0,
            "recvbuff": self.buffer() if shape.received and "recvbuff" not in values else 0,
            "sendbytes": shape.sent * size,
            "recvbytes": shape.received * size,
            "called": self._time,
            "returned": self._time + 10,
        }
        operation = Operation(
            kind=kind,
            communicator=comm,
            sequence=self._sequences[process, comm],
            number=number,
            **{**own, **values},
        )
        self.traces[process].operations.append(operation)
        return operation

    def all(self, kind: str, comm: str = "0", **fields: Any) -> None:  # noqa: ANN401
        """Record a collective of all ranks of a communicator."""
        for process in self.members[comm.rjust(16, "0")]:
            self.call(process, kind, comm, **fields)

    def remove(self, process: int, index: int) -> Operation:
        """Remove an operation from a recording, as if it was never called."""
        operations = self.traces[process].operations
        gone = operations.pop(index)
        for place in range(index, len(operations)):
            one = operations[place]
            if one.communicator != gone.communicator:
                continue
            same = _counted(one) == _counted(gone) and one.number is not None
            operations[place] = replace(
                one,
                sequence=one.sequence - 1,
                number=(one.number or 0) - 1 if same else one.number,
            )
        return gone


def _counted(operation: Operation) -> object:
    if operation.kind in ("send", "recv"):
        return operation.kind, operation.peer
    return "collective"


_COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)


def generated(
    rng: random.Random,
    nranks: int,
    operations: int,
    *,
    streams: int = 3,
    count: int = 64,
    without: Collection[str] = (),
) -> World:
    """Generate a program of collectives, groups, messages and splits.

    Args:
        rng: the random generator.
        nranks: the size of the first communicator, in processes.
        operations: the minimum number of operations of rank 0.
        streams: the maximum number of streams, including the default one.
        count: the upper bound of element counts (exclusive).
        without: dtypes to exclude.
    """
    dtypes = [dtype for dtype in ITEMSIZES if dtype not in without]
    world = World(nranks)
    comms = [world.communicator("0", list(range(nranks)))]
    if nranks > 2:
        comms.append(world.communicator("a", [0, *range(2, nranks)]))
    comms.append(world.communicator("b", list(reversed(range(nranks)))))
    # One stream per communicator, as NCCL's rule on operation order requires.
    stream_of = {comm: rng.randrange(streams) * 16 for comm in comms}
    # A few reused buffers, none shared between streams.
    buffers = {stream: [world.buffer() for _ in range(4)] for stream in stream_of.values()}
    while len(world.traces[0].operations) < operations:
        comm = rng.choice(comms)
        stream = stream_of[comm]
        match rng.randrange(6):
            case 0:
                values = {"dtype": rng.choice(dtypes), "count": rng.randrange(1, count)}
                _messages(world, rng, comm, stream=stream, **values)
            case 1:
                number = world.group()
                for _ in range(rng.randrange(2, 5)):
                    values = {"dtype": rng.choice(dtypes), "count": rng.randrange(1, count)}
                    _collective(world, rng, comm, None, group=number, stream=stream, **values)
            case _:
                values = {"dtype": rng.choice(dtypes), "count": rng.randrange(1, count)}
                _collective(world, rng, comm, buffers[stream], stream=stream, **values)
    return world


def _collective(
    world: World,
    rng: random.Random,
    comm: str,
    buffers: list[int] | None,
    **fields: Any,  # noqa: ANN401 - those of an operation
) -> None:
    kind = rng.choice(_COLLECTIVES)
    nranks = len(world.members[comm])
    op = rng.choice(["sum", "min", "max", "prod", "avg", "user-defined"])
    values: dict[str, Any] = {**fields}
    if "reduce" in kind:
        values["op"] = op
    if kind in ("broadcast", "reduce", "gather", "scatter"):
        values["root"] = rng.randrange(nranks)
    if buffers is not None:
        send, receive = rng.sample(buffers, 2)
        block = values["count"] * ITEMSIZES[values["dtype"]]
        if rng.random() < 0.5 and kind != "all_to_all":
            receive = send
        values |= {"sendbuff": send, "recvbuff": receive}
        if send == receive and kind in ("all_gather", "gather", "reduce_scatter", "scatter"):
            large, small = ("recv", "send") if "gather" in kind else ("send", "recv")
            for rank, process in enumerate(world.members[comm]):
                place = {f"{large}buff": send, f"{small}buff": send + rank * block}
                world.call(process, kind, comm, **{**values, **place})
            return
    world.all(kind, comm, **values)


def _messages(
    world: World,
    rng: random.Random,
    comm: str,
    **fields: Any,  # noqa: ANN401 - those of an operation
) -> None:
    """A ring in a group: each rank sends to the next and receives from the previous one."""
    members = world.members[comm]
    if len(members) < 2:
        return
    step = rng.randrange(1, len(members))
    values = {**fields, "group": world.group()}
    for rank, process in enumerate(members):
        world.call(process, "send", comm, peer=(rank + step) % len(members), **values)
        world.call(process, "recv", comm, peer=(rank - step) % len(members), **values)
