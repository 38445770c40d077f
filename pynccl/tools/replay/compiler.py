"""Builds the program of each rank from the recordings of all ranks."""

from __future__ import annotations

from pynccl.tools.replay.buffers import Layout, order
from pynccl.tools.replay.program import Member, Op, Program, Step
from pynccl.tools.replay.recorded import Process, Recorded, ReplayError
from pynccl.tools.trace.model import Operation
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
        ReplayError: an operation is unknown.
    """
    compilers = [
        _Compiler(recorded, place, provider=provider, scale=scale)
        for place in range(len(recorded.processes))
    ]
    return [compiler.compile() for compiler in compilers]


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
        operations = self._process.operations
        last = {_group_key(one): index for index, one in enumerate(operations)}
        epoch = self._process.trace.epoch
        steps: list[Step] = []
        groups: dict[tuple[int, int], Step] = {}
        for index, operation in enumerate(operations):
            at, op = operation.called + epoch, self._op(operation)
            if operation.group is None:
                steps.append(Step(at, [op]))
                continue
            key = _group_key(operation)
            groups.setdefault(key, Step(at, grouped=True)).ops.append(op)
            if last[key] == index:
                steps.append(groups.pop(key))
        return steps

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
