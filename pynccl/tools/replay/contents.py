"""The contents of a program's buffers: chosen inputs, and outputs derived from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pynccl.tools.replay.layout import Accesses
from pynccl.tools.replay.program import Member, Op, Program, Source, Step, demand, phase_of

__all__ = ["choose_sources", "match", "order"]


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
