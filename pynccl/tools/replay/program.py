"""The program of a rank: operations with their memory and streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.tools.trace.model import Operation
from pynccl.tools.trace.shape import ITEMSIZES, Blocks

__all__ = ["Member", "Op", "Program", "Step"]


class Member(NamedTuple):
    """A communicator of a program.

    Attributes:
        number: equal on all ranks.
    """

    number: int
    label: str
    nranks: int
    rank: int


@dataclass
class Op:
    """An operation of a replay.

    Attributes:
        recorded: the recorded operation, with the ranks of the replay.
        member: its communicator.
        count: number of elements, as the nccl.h function counts them.
        op: the operator; "user-defined" is replayed as pre_mul_sum.
        shape: the blocks of count elements that it reads and writes.
        stream: index of its stream.
        send: byte offset that it reads in the arena.
        recv: byte offset that it writes in the arena.
        sent: number of elements that it reads.
        received: number of elements that it writes.
    """

    recorded: Operation
    member: Member
    count: int
    op: str | None
    shape: Blocks
    stream: int
    send: int = 0
    recv: int = 0

    def __post_init__(self) -> None:
        self.kind = self.recorded.kind
        self.itemsize = ITEMSIZES[self.recorded.dtype]
        self.sent = self.shape.sent * self.count
        self.received = self.shape.received * self.count


@dataclass
class Step:
    """Operations that are issued together.

    Attributes:
        at: time in nanoseconds since 1970, on the clock of the recorded machine.
        grouped: whether they are issued in a group.
        waits: (stream, earlier step, other stream): the stream waits for that step on the other
            stream.
        marks: the streams on which a later wait needs the end of this step.
    """

    at: int
    ops: list[Op] = field(default_factory=list)
    grouped: bool = False
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    marks: set[int] = field(default_factory=set)


@dataclass
class Program:
    """The program of one rank.

    Attributes:
        rank: the process's rank in the recording.
        members: its communicators, in the order of creation.
        streams: number of streams besides the default one.
        nbytes: size of its memory.
    """

    rank: int
    members: list[Member] = field(default_factory=list)
    streams: int = 0
    nbytes: int = 0
    steps: list[Step] = field(default_factory=list)

    @property
    def operations(self) -> list[Op]:
        return [op for step in self.steps for op in step.ops]
