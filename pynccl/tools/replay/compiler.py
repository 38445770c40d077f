"""Builds the program of each rank from the recordings of all ranks."""

from __future__ import annotations

from collections import defaultdict

from pynccl.tools.replay.buffers import Layout, order
from pynccl.tools.replay.program import Member, Op, Program, Step
from pynccl.tools.replay.recorded import Process, Recorded, ReplayError
from pynccl.tools.trace.model import Operation, Wait
from pynccl.tools.trace.shape import ITEMSIZES, KINDS, blocks

__all__ = ["compile_programs"]

_OPERATORS = ("sum", "prod", "max", "min", "avg")


def compile_programs(
    recorded: Recorded, *, provider: str = "host", scale: float = 1.0
) -> list[Program]:
    """Build the program of each process.

    Args:
        recorded: the recordings.
        provider: on "host" the default stream is the thread; those of several threads become
            streams.
        scale: factor for counts.

    Raises:
        ReplayError: a rank has no file, or an operation is unknown.
    """
    for comm in recorded.comms.values():
        if comm.missing:
            raise ReplayError(
                f"communicator {comm.label}: there is no recording of its ranks "
                f"{list(comm.missing)}; pass a number of ranks to replay without them"
            )
    compilers = [
        _Compiler(recorded, place, provider=provider, scale=scale)
        for place in range(len(recorded.processes))
    ]
    return [compiler.compile() for compiler in compilers]


class _Issued:
    """The steps issued so far.

    Attributes:
        operations: the step and the stream, by communicator and sequence number.
    """

    def __init__(self) -> None:
        self.operations: dict[tuple[str, int], tuple[int, int]] = {}
        self._streams: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def add(self, op: Op, step: int) -> None:
        recorded = op.recorded
        self.operations[recorded.communicator, recorded.sequence] = step, op.stream
        self.add_call(op.stream, recorded.called, step)

    def add_call(self, stream: int, called: int, step: int) -> None:
        self._streams[stream].append((called, step))

    def before(self, stream: int, time: int) -> tuple[int, int] | None:
        """The last call on a stream up to that time."""
        calls = reversed(self._streams[stream])
        return next(((step, stream) for called, step in calls if called <= time), None)


class _Compiler:
    """Builds the program of one process."""

    def __init__(self, recorded: Recorded, place: int, *, provider: str, scale: float) -> None:
        self._process: Process = recorded.processes[place]
        self._scale = scale
        self._members = {
            id: Member(index, comm.label, len(comm.ranks), comm.ranks.index(place))
            for index, (id, comm) in enumerate(recorded.comms.items())
            if place in comm.ranks
        }
        # The default streams of several threads would block the one thread of the replay.
        self._by_thread = provider == "host" and self._process.several_threads
        self._streams: dict[tuple[int, int], int] = {}

    def compile(self) -> Program:
        program = Program(self._process.rank, list(self._members.values()))
        program.steps = self._steps()
        self._place_buffers(program)
        program.streams = len(self._streams)
        if len({op.stream for op in program.operations}) > 1:
            order(program.steps)
        return program

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
        issued = _Issued()
        for index, item in enumerate(items):
            if isinstance(item, Wait):
                self._add_wait(steps, item, epoch, issued)
                continue
            op = self._op(item)
            if item.group is None:
                issued.add(op, len(steps))
                steps.append(Step(item.called + epoch, [op]))
                continue
            key = _group_key(item)
            step = groups.setdefault(key, Step(item.called + epoch, grouped=True))
            step.ops.append(op)
            if last[key] == index:
                for one in step.ops:
                    issued.add(one, len(steps))
                steps.append(groups.pop(key))
        return steps

    def _add_wait(self, steps: list[Step], wait: Wait, epoch: int, issued: _Issued) -> None:
        """Add a recorded wait, if its target is known and in the replay."""
        place = None
        if wait.event_stream is not None and wait.event_recorded is not None:
            if (stream := self._known_stream(wait.event_stream)) is not None:
                place = issued.before(stream, wait.event_recorded)
        elif wait.what == "stream" and wait.stream is not None:
            if (stream := self._known_stream(wait.stream)) is not None:
                steps.append(Step(wait.called_at + epoch, sync=stream))
        elif wait.communicator is not None and wait.sequence is not None:
            place = issued.operations.get((wait.communicator, wait.sequence))
        if place is None:
            return
        waiting = None  # the thread
        if wait.what == "stream_event":
            if wait.stream is None:
                return
            waiting = self._stream(wait.stream, 0)
        earlier, other = place
        if other == waiting:
            return
        steps[earlier].marks.add(other)
        if waiting is not None:  # waits for this stream also wait for its target
            issued.add_call(waiting, wait.called_at, len(steps))
        steps.append(Step(wait.called_at + epoch, waits=[(waiting, earlier, other)]))

    def _known_stream(self, handle: int) -> int | None:
        """The stream, if it has been used; None if there is nothing to wait for."""
        return 0 if handle == 0 else self._streams.get((handle, 0))

    def _op(self, operation: Operation) -> Op:
        member = self._members[operation.communicator]
        if operation.kind not in KINDS:
            raise ReplayError(
                f"this version of pynccl does not support the operation {operation.kind!r}"
            )
        if operation.dtype not in ITEMSIZES:
            raise ReplayError(
                f"rank {self._process.rank}: {operation.kind} with sequence {operation.sequence} "
                f"of communicator {member.label} has the unsupported dtype {operation.dtype!r}"
            )
        shape = blocks(operation.kind, member.nranks, member.rank, operation.root)
        count = max(1, int(operation.count * self._scale)) if operation.count else 0
        operator = operation.op
        if operator is not None and operator not in _OPERATORS:
            operator = "user-defined"
        stream = self._stream(operation.stream, operation.thread)
        return Op(operation, member, count, operator, shape, stream)

    def _place_buffers(self, program: Program) -> None:
        """Place every buffer in the arena."""
        in_arena: list[tuple[Op, str | None]] = []
        buffers: list[tuple[int, int, int, int]] = []
        for op in program.operations:
            item, recorded = op.itemsize, op.recorded
            inside = _in_place(op)
            in_arena.append((op, inside))
            if op.sent and inside != "send":
                size = op.shape.sent * recorded.count * item
                buffers.append((recorded.sendbuff, size, op.sent * item, item))
            if op.received and inside != "recv":
                size = op.shape.received * recorded.count * item
                buffers.append((recorded.recvbuff, size, op.received * item, item))
        layout = Layout(buffers, self._scale)
        program.nbytes = layout.nbytes
        for op, inside in in_arena:
            block = op.count * op.itemsize
            if op.received and inside != "recv":
                op.recv = layout[op.recorded.recvbuff]
            if op.sent and inside != "send":
                op.send = layout[op.recorded.sendbuff]
            if inside == "send":
                op.send = op.recv + op.shape.own_received * block
            elif inside == "recv":
                op.recv = op.send + op.shape.own_sent * block


def _group_key(operation: Operation) -> tuple[int, int]:
    """The key of a group; each launch of a captured group is a separate group."""
    return operation.group or 0, operation.called if operation.graph is not None else -1


def _in_place(op: Op) -> str | None:
    """Which buffer is part of the other: "send", "recv" or None."""
    if not (op.sent and op.received) or op.kind == "all_to_all":
        return None
    recorded, shape = op.recorded, op.shape
    block = recorded.count * op.itemsize
    if op.sent > op.received:
        return "recv" if recorded.recvbuff == recorded.sendbuff + shape.own_sent * block else None
    in_place = recorded.sendbuff == recorded.recvbuff + shape.own_received * block
    return "send" if in_place else None
