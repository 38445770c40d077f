"""The buffers of a program: their layout in memory, inputs, expected outputs, and order of use."""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pynccl.tools.replay.program import Member, Op, Program, Source, Step, demand, phase_of

__all__ = ["Accesses", "Layout", "choose_sources", "match", "order"]

_ALIGNMENT = 64  # bytes; for memory that did not overlap with other memory


class Layout:
    """Offsets of recorded buffers in one arena.

    Buffers that overlap, directly or through others, keep their order. If the scale is less than
    one, buffers that were disjoint remain disjoint.

    Args:
        buffers: (address, recorded bytes, bytes in the replay, alignment in the replay) of each.
        scale: factor for recorded distances.
    """

    def __init__(self, buffers: Iterable[tuple[int, int, int, int]], scale: float) -> None:
        # For each address, the largest buffer.
        largest: dict[int, tuple[int, int, int]] = {}
        for address, size, scaled, alignment in buffers:
            old = largest.get(address, (0, 0, 1))
            largest[address] = (max(old[0], size), max(old[1], scaled), max(old[2], alignment))
        self._starts: dict[int, int] = {}
        self.nbytes = 0
        island_end = -1  # of the recording
        origin = base = 0  # the island's start in the recording, and in the arena
        ended = 0  # the arena offset behind the buffers that have ended in the recording
        running: list[tuple[int, int]] = []  # (recorded end, end in the arena)
        previous = 0
        for address, (size, scaled, alignment) in sorted(largest.items()):
            while running and running[0][0] <= address:
                ended = max(ended, heapq.heappop(running)[1])
            if address >= island_end:  # nothing overlaps it
                running.clear()
                origin = address
                ended = base = start = _round_up(self.nbytes, _ALIGNMENT)
            else:
                start = base + address - origin
                if scale != 1:
                    start = max(base + int((address - origin) * scale), ended, previous)
                    start = _round_up(start, alignment)
            self._starts[address] = previous = start
            heapq.heappush(running, (address + size, start + scaled))
            island_end = max(island_end, address + size)
            self.nbytes = max(self.nbytes, start + scaled)

    def __getitem__(self, address: int) -> int:
        """Return the arena offset of a recorded address.

        Raises:
            KeyError: the address does not belong to a buffer.
        """
        return self._starts[address]


class Accesses:
    """The last reads and writes of each part of the arena, by stream.

    Args:
        bounds: start and end of every buffer in the arena.
    """

    def __init__(self, bounds: Iterable[int]) -> None:
        self._bounds = sorted(set(bounds))
        self._reads: list[dict[int, int]] = [{} for _ in self._bounds]
        self._writes: list[dict[int, int]] = [{} for _ in self._bounds]

    def _parts(self, begin: int, end: int) -> range:
        return range(bisect.bisect_left(self._bounds, begin), bisect.bisect_left(self._bounds, end))

    def before(self, begin: int, end: int, *, writes: bool) -> dict[int, int]:
        """The last step of each stream that an access must follow."""
        found: dict[int, int] = {}
        for part in self._parts(begin, end):
            for table in (self._writes, self._reads) if writes else (self._writes,):
                for stream, step in table[part].items():
                    found[stream] = max(found.get(stream, -1), step)
        return found

    def add(self, begin: int, end: int, stream: int, step: int, *, writes: bool) -> None:
        """Record an access."""
        table = self._writes if writes else self._reads
        for part in self._parts(begin, end):
            table[part][stream] = step


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class _Access(NamedTuple):
    begin: int
    end: int
    op: Op
    writes: bool


def _accesses(step: Step) -> list[_Access]:
    found = []
    for op in step.ops:
        if op.sent:
            found.append(_Access(op.send, op.send + op.sent * op.itemsize, op, writes=False))
        if op.received:
            found.append(_Access(op.recv, op.recv + op.received * op.itemsize, op, writes=True))
    return sorted(found, key=lambda one: one[:2])


def choose_sources(step: Step, members: dict[int, Member]) -> None:
    """Choose the contents of a step's inputs; inputs that overlap share one sequence."""
    for op in step.ops:
        member = members[op.comm]
        if not op.sent:
            continue
        op.source = demand(op.kind, op.op, op.dtype, member.nranks)
        if op.source is not None:
            phase = phase_of(op.comm, op.recorded.sequence, member.rank)
            op.source = op.source.at(phase)
    accesses = _accesses(step)
    inputs = [one for one in accesses if not one.writes]
    cluster: list[_Access] = []
    end = -1
    for one in inputs:
        if cluster and one.begin >= end:
            _unite(cluster)
            cluster = []
        cluster.append(one)
        end = max(end, one.end)
    _unite(cluster)
    active: list[_Access] = []
    for one in accesses:
        active = [other for other in active if other.end > one.begin]
        for other in active:
            _note_conflict(one, other)
        active.append(one)


def _unite(cluster: Sequence[_Access]) -> None:
    if len(cluster) < 2:
        return
    first = cluster[0].op
    sources = [one.op.source for one in cluster]
    kinds = {None if source is None else (source.mode, source.factor) for source in sources}
    aligned = all((one.begin - cluster[0].begin) % first.itemsize == 0 for one in cluster)
    dtypes = {one.op.dtype for one in cluster}
    if first.source is None or len(kinds) > 1 or len(dtypes) > 1 or not aligned:
        for one in cluster:
            one.op.tainted = True
        return
    modulus = min(source.modulus for source in sources if source is not None)
    whole = first.source._replace(modulus=modulus, phase=first.source.phase % modulus)
    for one in cluster:
        one.op.source = whole.at((one.begin - cluster[0].begin) // first.itemsize)


def _note_conflict(one: _Access, other: _Access) -> None:
    if one.op is other.op:
        mine = one.op
        whole = max(mine.sent, mine.received) * mine.itemsize
        inside = max(one.end, other.end) - min(one.begin, other.begin) == whole
        if not inside or mine.kind == "all_to_all":
            mine.settled = False
        return
    if one.writes and other.writes:
        one.op.settled = other.op.settled = False
    elif one.writes or other.writes:
        reader = other.op if one.writes else one.op
        reader.tainted = True


def match(programs: Sequence[Program], comms: Sequence[tuple[int, ...]]) -> None:
    """Derive the expected outputs from the inputs of all participating ranks."""
    collectives: dict[tuple[int, int], dict[int, Op]] = defaultdict(dict)
    messages: dict[tuple[int, int, int, int], dict[str, Op]] = defaultdict(dict)
    for program in programs:
        ranks = {member.number: member.rank for member in program.members}
        for op in program.operations:
            if op.kind == "send" and op.peer is not None:
                messages[op.comm, ranks[op.comm], op.peer, op.position]["send"] = op
            elif op.kind == "recv" and op.peer is not None:
                messages[op.comm, op.peer, ranks[op.comm], op.position]["recv"] = op
            elif op.position:
                collectives[op.comm, op.position][ranks[op.comm]] = op
    for (comm, _), by_rank in collectives.items():
        if len(by_rank) == len(comms[comm]):
            _expect(by_rank)
    for pair in messages.values():
        if len(pair) == 2:
            send, receive = pair["send"], pair["recv"]
            equal = (send.dtype, send.count) == (receive.dtype, receive.count)
            if equal and send.source is not None and not send.tainted and receive.settled:
                receive.expected = [send.source]


def _expect(by_rank: dict[int, Op]) -> None:
    operations = [by_rank[rank] for rank in sorted(by_rank)]
    first = operations[0]
    if len({op.signature for op in operations}) > 1:
        return
    kind, root, count = first.kind, first.root, first.count
    senders = [operations[root]] if kind in ("broadcast", "scatter") and root is not None else None
    sources: list[Source] = []
    for op in senders or operations:
        if op.source is None or op.tainted:
            return
        sources.append(op.source)
    for rank, op in enumerate(operations):
        if not op.received or not op.settled:
            continue
        offset = rank * count
        match kind:
            case "reduce_scatter" | "scatter" | "all_to_all":
                op.expected = [source.at(offset) for source in sources]
            case _:
                op.expected = list(sources)
        op.reduced = kind in ("all_reduce", "reduce", "reduce_scatter")


def order(steps: Sequence[Step], *, data: bool) -> None:
    """Order operations on different streams that use the same memory, as the recording must have.

    With data, inputs are filled before each operation, so reading implies writing.
    """
    bounds = [bound for step in steps for one in _accesses(step) for bound in (one.begin, one.end)]
    table = Accesses(bounds)
    known: dict[tuple[int, int], int] = {}
    for number, step in enumerate(steps):
        accesses = _accesses(step)
        for stream in {one.op.stream for one in accesses}:
            needed: dict[int, int] = {}
            for one in accesses:
                if one.op.stream == stream:
                    writes = one.writes or data
                    for other, last in table.before(one.begin, one.end, writes=writes).items():
                        needed[other] = max(needed.get(other, -1), last)
            for other, last in needed.items():
                if other != stream and last > known.get((stream, other), -1):
                    known[stream, other] = last
                    step.waits.append((stream, last, other))
                    steps[last].marks.add(other)
        for one in accesses:
            table.add(one.begin, one.end, one.op.stream, number, writes=one.writes or data)
