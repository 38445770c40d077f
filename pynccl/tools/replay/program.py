"""What each rank of a replay does: operations with places in memory, and what they must give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.tools.replay.shape import ITEMSIZES
from pynccl.tools.replay.values import Source
from pynccl.tools.trace.model import Operation, Signal

__all__ = ["Member", "Op", "Program", "Step"]


@dataclass
class Op:
    """An operation of a replay.

    Attributes:
        comm: which of the program's communicators.
        position: from 1, among the counterparts of the replay; 0 where it has none.
        recorded: the operation in the recording.
        op: the operator; "user-defined" is replayed as pre_mul_sum.
        send: where it reads in the arena, in bytes; of a put in the window ``home``.
        recv: where it writes in the arena; of a put in its peer's window ``window``.
        sent: elements that it reads.
        received: elements that it writes.
        source: what its input contains; None: it is not filled.
        expected: what its output must contain: a source for each block, or with ``reduced`` those
            that are reduced to the one block. None: it is not checked.
        settled: no other operation of the group writes what it writes.
        tainted: another operation may change its input.
        home: of a put the number of the own window that it reads; of what it must have written in
            this rank's window, the number of that. None: the buffers are in the arena.
        window: of a put the number of the window that it writes to.
    """

    kind: str
    comm: int
    position: int
    recorded: Operation
    dtype: str
    count: int
    op: str | None
    root: int | None
    peer: int | None
    stream: int
    send: int = 0
    recv: int = 0
    sent: int = 0
    received: int = 0
    source: Source | None = None
    expected: list[Source] | None = None
    reduced: bool = False
    settled: bool = True
    tainted: bool = False
    home: int | None = None
    window: int | None = None

    @property
    def itemsize(self) -> int:
        return ITEMSIZES[self.dtype]

    @property
    def signature(self) -> tuple[object, ...]:
        return self.kind, self.dtype, self.count, self.op, self.root


@dataclass
class Step:
    """Operations that are issued together, or a wait.

    Attributes:
        at: when, in nanoseconds since 1970 by the clock of the recorded machine.
        grouped: within a group.
        sync: the thread waits for this stream.
        waits: (stream, earlier step, other stream): the stream, or the thread where it is None,
            waits for that step on the other.
        marks: the streams for which the end of this step is waited for later.
    """

    at: int
    ops: list[Op] = field(default_factory=list)
    grouped: bool = False
    sync: int | None = None
    waits: list[tuple[int | None, int, int]] = field(default_factory=list)
    marks: set[int] = field(default_factory=set)


class Member(NamedTuple):
    """A communicator of a program.

    Attributes:
        number: equal on all ranks.
        signals: the signals of a context that one-sided operations use.
        contexts: that they use.
    """

    number: int
    label: str
    nranks: int
    rank: int
    signals: int = 1
    contexts: int = 1


@dataclass
class Program:
    """What one rank does.

    Attributes:
        rank: of the process in the recording.
        members: its communicators, in the order of creation.
        streams: how many there are besides the default one.
        nbytes: of its memory.
        windows: their bytes, by the number of the communicator and their own.
        signals: those that no operation waits for, by the number of the communicator.
        regions: parts of the windows that ranks put into.
        shared: those of them that several ranks write, this rank with the sources of its puts too.
        landed: what those that are compared contain at the end, as operations that receive it.
    """

    rank: int
    members: list[Member] = field(default_factory=list)
    streams: int = 0
    nbytes: int = 0
    steps: list[Step] = field(default_factory=list)
    windows: dict[tuple[int, int], int] = field(default_factory=dict)
    signals: dict[int, list[Signal]] = field(default_factory=dict)
    regions: int = 0
    shared: int = 0
    landed: list[Op] = field(default_factory=list)

    @property
    def operations(self) -> list[Op]:
        return [op for step in self.steps for op in step.ops]
