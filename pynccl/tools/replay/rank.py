"""One rank of a replay: creates the communicators and streams, and issues the steps."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import pickle
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pynccl.testing import Rank
from pynccl.tools.replay.check import described
from pynccl.tools.replay.program import Op, Program, Step

__all__ = ["Options", "Outcome", "run_rank"]

_STRIDE = 128  # steps between two marks, at most three of which are outstanding
_SCALAR = 2  # of user-defined operators, which are replayed as pre_mul_sum(2)
_POLL = 0.005  # seconds


@dataclass(frozen=True)
class Options:
    """Options of the ranks; see :func:`pynccl.tools.replay.replay`."""

    provider: str = "host"
    recorded_speed: bool = False
    timeout: float = 20.0


@dataclass
class Outcome:
    """The final report of a rank.

    Attributes:
        failure: the error that stopped it, if any.
        durations: the nanoseconds of the operations of its program; empty after a failure.
        seconds: its time.
    """

    failure: str | None = None
    durations: list[int] = field(default_factory=list)
    seconds: float = 0.0


class _View:
    """A buffer for collectives: memory, a shape and the name of a dtype."""

    def __init__(self, interface: str, address: int, count: int, itemsize: int, dtype: str) -> None:
        self.dtype = dtype
        # V: the type is in the attribute dtype, which supports names that type strings lack.
        typestr = f"|V{itemsize}"
        value = {"version": 3, "typestr": typestr, "shape": (count,), "data": (address, False)}
        setattr(self, interface, value)


class _FailedError(Exception):
    """A call raised an error that does not name the operation."""


def run_rank(rank: Rank, options: Options, folder: str) -> None:
    """Replay the program of a rank in a folder, and report an :class:`Outcome`."""
    program: Program = pickle.loads(Path(folder, f"program-{rank.rank}").read_bytes())
    outcome = Outcome()
    player = _Player(rank, options, program, outcome)
    try:
        player.prepare()
        rank.report("ready")
        player.play(first=int(_wait_for(folder, "start", rank)))
    except Exception as error:
        name = type(error).__name__
        outcome.failure = str(error) if isinstance(error, _FailedError) else f"{name}: {error}"
    rank.report(outcome)
    # Communicators stay open until all ranks have ended: they may wait for this one, or query it.
    _wait_for(folder, "end", rank)
    player.close(abort=outcome.failure is not None)


def _wait_for(folder: str, name: str, rank: Rank) -> str:
    """Wait until the launching process has written a file, and return its text."""
    path = Path(folder, name)
    reported = time.monotonic()
    while not path.exists():
        time.sleep(_POLL)
        if time.monotonic() - reported > 1:
            rank.report("waits")
            reported = time.monotonic()
    return path.read_text()


class _Player:
    def __init__(self, rank: Rank, options: Options, program: Program, outcome: Outcome) -> None:
        from pynccl import nccl

        self._nccl = nccl
        self._rank = rank
        self._options = options
        self._program = program
        self._outcome = outcome
        self._host = rank.provider != "cuda"
        self._comms: dict[int, nccl.Communicator] = {}
        self._streams: list[nccl.Stream | None] = [None]
        self._events: dict[tuple[int, int], nccl.Event] = {}
        self._marks: deque[list[nccl.Event]] = deque()
        self._operators: dict[tuple[int, str], nccl.RedOp] = {}
        self._timed: list[tuple[list[Op], nccl.Event, nccl.Event]] = []
        self._reported = time.monotonic()
        self._memory: object = None  # the owner of the operations' memory
        self._address = 0

    # --- before and after

    def prepare(self) -> None:
        nccl = self._nccl
        device = self._rank.device
        for member in self._program.members:
            config = nccl.Config(
                timeout=self._options.timeout,
                init_timeout=30 + self._options.timeout,
            )
            comm = nccl.Communicator(
                member.nranks,
                self._rank.unique_ids[member.number],
                member.rank,
                provider=self._rank.provider,
                device=device,
                config=config,
            )
            comm._set_name(member.label)
            self._comms[member.number] = comm
        for _ in range(self._program.streams):
            self._streams.append(nccl.Stream(self._rank.provider, device=device))
        self._open_memory()

    def _open_memory(self) -> None:
        nbytes = max(self._program.nbytes, 1)
        if self._host or not self._comms:
            self._memory = memory = mmap.mmap(-1, nbytes)  # zeros, aligned to a page
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            return
        self._memory = buffer = next(iter(self._comms.values())).mem_alloc(nbytes)
        self._address = buffer.ptr

    def close(self, *, abort: bool) -> None:
        with contextlib.suppress(Exception):
            for comm in self._comms.values():
                comm.abort() if abort else comm.close()

    # --- steps

    def play(self, first: int) -> None:
        """Issue all steps; first is the recorded time of the first step of any rank."""
        began = time.monotonic_ns()
        for number, step in enumerate(self._program.steps):
            if self._options.recorded_speed:
                self._sleep_until(began + step.at - first)
            try:
                self._step(number, step)
            except Exception as error:
                if step.ops[0].kind not in str(error):
                    what = ", ".join(map(_named, step.ops[:3]))
                    raise _FailedError(f"{type(error).__name__} in {what}: {error}") from error
                raise
            if number % _STRIDE == _STRIDE - 1:
                self._throttle()
        self._synchronize()
        self._outcome.seconds = (time.monotonic_ns() - began) / 1e9
        durations = {
            id(op): round(start.elapsed_time(end) * 1e9)
            for ops, start, end in self._timed
            for op in ops
        }
        self._outcome.durations = [durations[id(op)] for op in self._program.operations]

    def _sleep_until(self, moment: int) -> None:
        while (left := moment - time.monotonic_ns()) > 0:
            time.sleep(min(left / 1e9, 0.5))
            self._live()

    def _live(self) -> None:
        """Report progress to the launching process, which ends silent ranks."""
        if time.monotonic() - self._reported > 1:
            self._rank.report("runs")
            self._reported = time.monotonic()

    def _step(self, number: int, step: Step) -> None:
        for stream, earlier, other in step.waits:
            self._wait(stream, self._events.get((earlier, other)))
        self._issue_step(step)
        for stream in step.marks:
            if (event := self._record(stream)) is not None:
                self._events[number, stream] = event

    def _issue_step(self, step: Step) -> None:
        by_stream: dict[int, list[Op]] = {}
        for op in step.ops:
            by_stream.setdefault(op.stream, []).append(op)
        began = {stream: self._timestamp(stream) for stream in by_stream}
        if step.grouped:
            with self._nccl.group():
                for op in step.ops:
                    self._issue(op)
        else:
            self._issue(step.ops[0])
        for stream, ops in by_stream.items():
            self._timed.append((ops, began[stream], self._timestamp(stream)))

    def _timestamp(self, stream: int) -> Any:  # noqa: ANN401 - an event
        event = self._nccl.Event(self._rank.provider, device=self._rank.device, timing=True)
        event.record(self._streams[stream] or 0)
        return event

    def _record(self, stream: int) -> Any:  # noqa: ANN401 - an event, or None
        """Record an event on a stream; None if the thread is the stream."""
        target = self._streams[stream]
        if target is None and self._host:
            return None
        event = self._nccl.Event(self._rank.provider, device=self._rank.device)
        event.record(target if target is not None else 0)
        return event

    def _wait(self, stream: int, event: Any) -> None:  # noqa: ANN401
        if event is None:
            return
        target = self._streams[stream]
        if target is None:
            event.synchronize()  # the default stream is the thread, or has no Stream
        else:
            target.wait(event)

    def _throttle(self) -> None:
        """Bound the enqueued work, because time limits count from the call."""
        self._live()
        used = range(0 if not self._host else 1, len(self._streams))
        self._marks.append([event for stream in used if (event := self._record(stream))])
        if len(self._marks) > 3:
            for event in self._marks.popleft():
                event.synchronize()

    def _synchronize(self) -> None:
        for index, target in enumerate(self._streams):
            if target is not None:
                target.synchronize()
            elif (event := self._record(index)) is not None:
                event.synchronize()

    # --- operations

    def _buffer(self, op: Op, offset: int, count: int) -> Any:  # noqa: ANN401 - a view
        interface = "__array_interface__" if self._host else "__cuda_array_interface__"
        return _View(interface, self._address + offset, count, op.itemsize, _dtype(op))

    def _operator(self, op: Op) -> Any:  # noqa: ANN401 - a RedOp or its name
        if op.op != "user-defined":
            return op.op or "sum"
        key = (op.member.number, op.recorded.dtype)
        if key not in self._operators:
            comm = self._comms[op.member.number]
            self._operators[key] = comm.pre_mul_sum(_SCALAR, _dtype(op))
        return self._operators[key]

    def _issue(self, op: Op) -> None:
        comm, stream = self._comms[op.member.number], self._streams[op.stream]
        root, peer = op.recorded.root or 0, op.recorded.peer or 0
        where: Any = stream if stream is not None or self._host else 0
        send = self._buffer(op, op.send, op.sent) if op.sent or op.count == 0 else None
        out = self._buffer(op, op.recv, op.received) if op.received else None
        if op.kind in ("all_reduce", "reduce_scatter"):
            getattr(comm, op.kind)(send, self._operator(op), out=out, stream=where)
        elif op.kind in ("all_gather", "all_to_all"):
            getattr(comm, op.kind)(send, out=out, stream=where)
        elif op.kind == "broadcast":  # on the other ranks the tensor is written
            tensor, result = (send, out) if op.sent else (out, None)
            comm.broadcast(tensor, root, out=result, stream=where)
        elif op.kind == "reduce":
            comm.reduce(send, root, self._operator(op), out=out, stream=where)
        elif op.kind in ("gather", "scatter"):
            getattr(comm, op.kind)(send, root, out=out, stream=where)
        elif op.kind in ("send", "recv"):
            getattr(comm, op.kind)(send if op.sent else out, peer, stream=where)


def _named(op: Op) -> str:
    rank = op.member.rank
    return f"{described(op.recorded)} of communicator {op.member.label} on rank {rank}"


def _dtype(op: Op) -> str:
    """The name of the dtype for pynccl, which is ml_dtypes' for 8-bit floats."""
    return "float8_e4m3fn" if op.recorded.dtype == "float8_e4m3" else op.recorded.dtype
