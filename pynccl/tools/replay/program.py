"""The program of a rank: operations with their memory, inputs and expected results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.tools.trace.model import Operation
from pynccl.tools.trace.shape import ITEMSIZES

__all__ = ["SCALAR", "Member", "Op", "Program", "Source", "Step", "demand", "phase_of"]

_PRIMES = (2, 3, 5, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191)
# The largest number up to which a dtype represents all integers.
_EXACT = {
    "int8": 127,
    "uint8": 255,
    "float16": 2048,
    "bfloat16": 256,
    "float8_e4m3": 16,
    "float8_e5m2": 8,
    "float32": 1 << 24,
}
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_SHORT = ("bfloat16", "float8_e4m3", "float8_e5m2")
SCALAR = 2  # of user-defined operators, which are replayed as pre_mul_sum(2)


class Source(NamedTuple):
    """The contents of an input.

    Attributes:
        mode: "plain": the numbers of the sequence; "power": 1 and 2, or "sign": 1 and -1, for odd
            and even ones; "multiple": multiplied by the number of ranks.
        modulus: the modulus of the sequence.
        phase: the first number.
        factor: the factor of "multiple".
    """

    mode: str
    modulus: int
    phase: int
    factor: int = 1

    def at(self, offset: int) -> Source:
        """The same source, starting at an element."""
        return self._replace(phase=(self.phase + offset) % self.modulus)


def demand(kind: str, op: str | None, dtype: str, nranks: int) -> Source | None:
    """Return inputs for which the result is exact, with phase 0; None if no such inputs exist."""
    limit = _EXACT.get(dtype, 1 << 24)
    integer = dtype in _INTEGERS
    if kind not in ("all_reduce", "reduce", "reduce_scatter") or op in ("min", "max", None):
        return _plain(limit)
    if integer and op in ("sum", "prod"):  # they wrap around to the same result in any order
        return _plain(limit)
    if op == "prod":
        return Source("power" if nranks <= 6 else "sign", 8191 if limit > 8191 else 7, 0)
    if op == "avg" and not integer:
        # For multiples of the number of ranks the average is an integer. NCCL may multiply by 1/n.
        power_of_two = nranks & (nranks - 1) == 0
        found = _plain(limit // nranks if power_of_two else limit // (nranks * nranks))
        short = dtype in _SHORT and not power_of_two
        return found._replace(mode="multiple", factor=nranks) if found and not short else None
    return _plain(limit // (nranks if op in ("sum", "avg") else nranks * SCALAR))


def _plain(largest: int) -> Source | None:
    """The sequence of numbers up to this one."""
    fitting = [prime for prime in _PRIMES if prime - 1 <= largest]
    return Source("plain", fitting[-1], 0) if fitting else None


def phase_of(communicator: int, sequence: int, rank: int) -> int:
    """Hash the three to a phase; inputs that differ in one get different phases in most dtypes."""
    mixed = (communicator * 1_000_003 + sequence) * 10_007 + rank * 7919
    return (mixed ^ mixed >> 13) * 2_654_435_761 & 0xFFFFFFFF


@dataclass
class Op:
    """An operation of a replay.

    Attributes:
        comm: index of the communicator in the program.
        position: from 1, among its counterparts in the replay; 0 if it has none.
        recorded: the recorded operation.
        op: the operator; "user-defined" is replayed as pre_mul_sum.
        send: byte offset that it reads in the arena.
        recv: byte offset that it writes in the arena.
        sent: number of elements that it reads.
        received: number of elements that it writes.
        source: the contents of its input; None if it is not filled.
        expected: the expected output: a source for each block or, with ``reduced``, the sources
            that are reduced to the one block. None if it is not checked.
        settled: whether no other operation of the group writes the same memory.
        tainted: whether another operation may change its input.
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
        at: time in nanoseconds since 1970, on the clock of the recorded machine.
        grouped: whether they are issued in a group.
        sync: the stream that the thread waits for.
        waits: (stream, earlier step, other stream): the stream, or the thread if it is None, waits
            for that step on the other stream.
        marks: the streams on which a later wait needs the end of this step.
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
    """

    number: int
    label: str
    nranks: int
    rank: int


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

    @property
    def outputs(self) -> int:
        """The number of outputs of operations."""
        return sum(op.received > 0 for op in self.operations)

    @property
    def checked(self) -> int:
        """The number of those that are compared."""
        return sum(op.expected is not None for op in self.operations)
