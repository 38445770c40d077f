"""What each rank of a replay does: operations with places in memory, and what they must give."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.replay.errors import ReplayError
from pynccl.replay.layout import ALIGNMENT, Accesses, Layout
from pynccl.replay.recorded import Process, Recorded, Sync, counterpart
from pynccl.replay.shape import ITEMSIZES, blocks
from pynccl.replay.values import Source, demand, phase_of
from pynccl.trace.model import Operation

__all__ = ["Member", "Op", "Program", "Step", "Window", "compile_programs"]

_OPERATORS = ("sum", "prod", "max", "min", "avg")


@dataclass
class Op:
    """An operation of a replay.

    Attributes:
        comm: which of the program's communicators.
        position: from 1, among the counterparts of the replay; 0 where it has none.
        recorded: the operation in the recording.
        op: the operator; "user-defined" is replayed as pre_mul_sum.
        send: where it reads in the arena, in bytes; of a put in the window.
        recv: where it writes in the arena.
        sent: elements that it reads.
        received: elements that it writes.
        source: what its input contains; None: it is not filled.
        expected: what its output must contain: a source for each block, or with ``reduced`` those
            that are reduced to the one block. None: it is not checked.
        settled: no other operation of the group writes what it writes.
        tainted: another operation of the group may change its input.
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
    """A communicator of a program; its number is equal on all ranks."""

    number: int
    label: str
    nranks: int
    rank: int


@dataclass
class Window:
    """Memory for the puts of a communicator, of equal layout on all ranks.

    Attributes:
        slot: bytes of each place.
        staging: places that puts read, one for each stream; those of the ranks come after them.
        signals: how many come from each rank.
        puts: the last put of each rank, as an operation that receives it.
    """

    slot: int
    staging: int
    nbytes: int
    signals: dict[int, int] = field(default_factory=dict)
    puts: list[Op] = field(default_factory=list)


@dataclass
class Program:
    """What one rank does.

    Attributes:
        rank: of the process in the recording.
        members: its communicators, in the order of creation.
        streams: how many there are besides the default one.
        nbytes: of its memory.
        windows: by the number of the communicator.
    """

    rank: int
    members: list[Member] = field(default_factory=list)
    streams: int = 0
    nbytes: int = 0
    steps: list[Step] = field(default_factory=list)
    windows: dict[int, Window] = field(default_factory=dict)

    @property
    def operations(self) -> list[Op]:
        return [op for step in self.steps for op in step.ops]


def compile_programs(
    recorded: Recorded, *, provider: str = "host", scale: float = 1.0, data: bool = True
) -> list[Program]:
    """Make the program of each process.

    Args:
        recorded: the recordings.
        provider: on "host" the default stream is the thread; those of several threads become
            streams.
        scale: what counts are multiplied by.
        data: inputs are filled, and results checked.

    Raises:
        ReplayError: a rank has no file, or an operation is not known.
    """
    for comm in recorded.comms.values():
        if comm.missing:
            raise ReplayError(
                f"communicator {comm.label}: there is no recording of its ranks "
                f"{list(comm.missing)}; give a number of ranks to replay without them"
            )
    compilers = [
        _Compiler(recorded, place, provider=provider, scale=scale, data=data)
        for place in range(len(recorded.processes))
    ]
    programs = [compiler.compile() for compiler in compilers]
    if data:
        _match(programs, [comm.ranks for comm in recorded.comms.values()])
    _open_windows(programs, [comm.ranks for comm in recorded.comms.values()])
    return programs


class _Compiler:
    """Makes the program of one process."""

    def __init__(
        self, recorded: Recorded, place: int, *, provider: str, scale: float, data: bool
    ) -> None:
        self._process: Process = recorded.processes[place]
        self._place = place
        self._notes = recorded.notes
        self._scale = scale
        self._data = data
        self._indexes = {id: index for index, id in enumerate(recorded.comms)}
        self._members = {
            id: Member(index, comm.label, len(comm.ranks), comm.ranks.index(place))
            for index, (id, comm) in enumerate(recorded.comms.items())
            if place in comm.ranks
        }
        # The default streams of several threads would block the one thread of the replay.
        self._by_thread = provider == "host" and self._process.several_threads
        self._streams: dict[tuple[int, int], int] = {}
        self._positions: dict[tuple[object, ...], int] = defaultdict(int)

    def compile(self) -> Program:
        program = Program(self._process.rank, list(self._members.values()))
        program.steps = self._steps()
        self._place_buffers(program)
        program.streams = len(self._streams)
        if self._data:
            for step in program.steps:
                _choose_sources(step, self._members_by_number)
        if len({op.stream for op in program.operations}) > 1:
            _order(program.steps, data=self._data)
        return program

    @property
    def _members_by_number(self) -> dict[int, Member]:
        return {member.number: member for member in self._members.values()}

    def _stream(self, handle: int, thread: int) -> int:
        if handle == 0 and not self._by_thread:
            return 0
        key = (handle, thread if handle == 0 else 0)
        return self._streams.setdefault(key, len(self._streams) + 1)

    def _steps(self) -> list[Step]:
        items = self._process.items
        last: dict[tuple[int, int], int] = {}
        for index, item in enumerate(items):
            if isinstance(item, Operation) and item.group is not None:
                last[_group_key(item)] = index
        epoch = self._process.trace.epoch
        steps: list[Step] = []
        groups: dict[tuple[int, int], Step] = {}
        issued: dict[tuple[str, int], tuple[int, int]] = {}  # the step and stream of operations
        for index, item in enumerate(items):
            if isinstance(item, Sync):
                self._add_wait(steps, item, epoch, issued)
                continue
            op = self._op(item)
            if item.group is None:
                issued[item.communicator, item.sequence] = len(steps), op.stream
                steps.append(Step(item.called + epoch, [op]))
                continue
            key = _group_key(item)
            step = groups.setdefault(key, Step(item.called + epoch, grouped=True))
            step.ops.append(op)
            if last[key] == index:
                for one in step.ops:
                    place = one.recorded.communicator, one.recorded.sequence
                    issued[place] = len(steps), one.stream
                steps.append(groups.pop(key))
        return steps

    def _add_wait(
        self,
        steps: list[Step],
        wait: Sync,
        epoch: int,
        issued: dict[tuple[str, int], tuple[int, int]],
    ) -> None:
        """Add a wait of the recording, where the replay has what it waits for."""
        if isinstance(wait.target, int):
            stream = self._known_stream(wait.target)
            if stream is not None:
                steps.append(Step(wait.called + epoch, sync=stream))
            return
        waiting = None if wait.stream is None else self._known_stream(wait.stream)
        if wait.target not in issued or (waiting is None and wait.stream is not None):
            return
        earlier, other = issued[wait.target]
        if other == waiting:
            return
        steps[earlier].marks.add(other)
        steps.append(Step(wait.called + epoch, waits=[(waiting, earlier, other)]))

    def _known_stream(self, handle: int) -> int | None:
        """A stream that operations are on; None: nothing to wait for."""
        return 0 if handle == 0 else self._streams.get((handle, 0))

    def _op(self, operation: Operation) -> Op:
        member = self._members[operation.communicator]
        if operation.dtype not in ITEMSIZES and operation.kind not in ("signal", "wait_signal"):
            raise ReplayError(
                f"rank {self._process.rank}: {operation.kind} with sequence {operation.sequence} "
                f"of communicator {member.label} has the dtype {operation.dtype!r}, which is not "
                "known"
            )
        shape = blocks(operation.kind, member.nranks, member.rank, operation.root)
        count = max(1, int(operation.count * self._scale)) if operation.count else 0
        position = 0
        kind = counterpart(operation)
        if kind is not None:
            key = (operation.communicator, *kind)
            self._positions[key] += 1
            position = self._positions[key]
        operator = operation.op
        if operator is not None and operator not in _OPERATORS:
            operator = "user-defined"
        return Op(
            operation.kind,
            member.number,
            position,
            operation,
            operation.dtype,
            count,
            operator,
            operation.root,
            operation.peer,
            self._stream(operation.stream, operation.thread),
            sent=shape.sent * count,
            received=shape.received * count,
        )

    def _place_buffers(self, program: Program) -> None:
        """Choose where every buffer is in the arena."""
        members = self._members_by_number
        buffers: list[tuple[int, int, int, int]] = []
        for op in program.operations:
            if op.kind in ("put_signal", "signal", "wait_signal"):
                continue
            item, recorded = op.itemsize, op.recorded
            shape = blocks(op.kind, members[op.comm].nranks, members[op.comm].rank, op.root)
            inside = _in_place(op, shape.own_sent, shape.own_received)
            if op.sent and inside != "send":
                size = shape.sent * recorded.count * item
                buffers.append((recorded.sendbuff, size, op.sent * item, item))
            if op.received and inside != "recv":
                size = shape.received * recorded.count * item
                buffers.append((recorded.recvbuff, size, op.received * item, item))
        layout = Layout(buffers, self._scale)
        program.nbytes = layout.nbytes
        for op in program.operations:
            if op.kind in ("put_signal", "signal", "wait_signal"):
                continue
            shape = blocks(op.kind, members[op.comm].nranks, members[op.comm].rank, op.root)
            inside = _in_place(op, shape.own_sent, shape.own_received)
            block = op.count * op.itemsize
            if op.received and inside != "recv":
                op.recv = layout[op.recorded.recvbuff]
            if op.sent and inside != "send":
                op.send = layout[op.recorded.sendbuff]
            if inside == "send":
                op.send = op.recv + shape.own_received * block
            elif inside == "recv":
                op.recv = op.send + shape.own_sent * block


def _group_key(operation: Operation) -> tuple[int, int]:
    """Of a captured group each launch is one."""
    return operation.group or 0, operation.called if operation.graph is not None else -1


def _in_place(op: Op, own_sent: int, own_received: int) -> str | None:
    """Which buffer is part of the other: "send", "recv", or None."""
    if not (op.sent and op.received) or op.kind == "all_to_all":
        return None
    recorded = op.recorded
    block = recorded.count * op.itemsize
    if op.sent > op.received and recorded.recvbuff == recorded.sendbuff + own_sent * block:
        return "recv"
    if op.sent <= op.received and recorded.sendbuff == recorded.recvbuff + own_received * block:
        return "send"
    return None


# --- contents of buffers


class _Access(NamedTuple):
    begin: int
    end: int
    op: Op
    writes: bool


def _accesses(step: Step) -> list[_Access]:
    found = []
    for op in step.ops:
        if op.kind in ("put_signal", "signal", "wait_signal"):
            continue
        if op.sent:
            found.append(_Access(op.send, op.send + op.sent * op.itemsize, op, writes=False))
        if op.received:
            found.append(_Access(op.recv, op.recv + op.received * op.itemsize, op, writes=True))
    return sorted(found, key=lambda one: one[:2])


def _choose_sources(step: Step, members: dict[int, Member]) -> None:
    """Say what the inputs of a step contain; inputs that overlap contain one sequence."""
    for op in step.ops:
        member = members[op.comm]
        if op.kind in ("signal", "wait_signal") or not op.sent:
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


def _match(programs: Sequence[Program], comms: Sequence[tuple[int, ...]]) -> None:
    """Say what outputs must contain, from the inputs of all ranks that take part."""
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


# --- order between streams


def _order(steps: Sequence[Step], *, data: bool) -> None:
    """Order operations of different streams that use the same memory, as the recording must have.

    With data, inputs are filled before each operation: what reads writes as well.
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


# --- one-sided operations


def _open_windows(programs: Sequence[Program], comms: Sequence[tuple[int, ...]]) -> None:
    """Give puts memory: their places are not recorded, so that each rank has one at its peers."""
    slots: dict[int, int] = {}
    signals: dict[tuple[int, int, int], int] = defaultdict(int)
    puts: dict[tuple[int, int, int], list[Op]] = defaultdict(list)
    streams = max((program.streams for program in programs), default=0) + 1
    for program in programs:
        ranks = {member.number: member.rank for member in program.members}
        for op in program.operations:
            if op.kind not in ("put_signal", "signal") or op.peer is None:
                continue
            signals[op.comm, ranks[op.comm], op.peer] += 1
            slots.setdefault(op.comm, ALIGNMENT)
            if op.kind == "put_signal":
                size = -(-op.sent * op.itemsize // ALIGNMENT) * ALIGNMENT
                slots[op.comm] = max(slots[op.comm], size)
                puts[op.comm, ranks[op.comm], op.peer].append(op)
    for comm, slot in slots.items():
        for place in comms[comm]:
            nbytes = slot * (streams + len(comms[comm]))
            programs[place].windows[comm] = Window(slot, streams, nbytes)
    for (comm, rank, peer), count in signals.items():
        programs[comms[comm][peer]].windows[comm].signals[rank] = count
    for (comm, rank, peer), operations in puts.items():
        window = programs[comms[comm][peer]].windows[comm]
        for op in operations:
            op.send = op.stream * window.slot
            op.recv = (window.staging + rank) * window.slot
        last = operations[-1]
        if last.source is not None and len({op.stream for op in operations}) == 1:
            window.puts.append(
                dataclasses.replace(
                    last, source=None, sent=0, received=last.count, expected=[last.source]
                )
            )
