"""Steps on two streams, timed by events, and maxima of their times over the ranks."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pynccl import nccl
from pynccl.tools.lab.row import Span

__all__ = [
    "Enqueue",
    "Ran",
    "Step",
    "Steps",
    "Together",
    "align",
    "maximum",
    "new_event",
    "new_stream",
    "timed",
]

# A function that enqueues work on a stream.
Enqueue: TypeAlias = Callable[[nccl.Stream], object]
# A function that enqueues compute and communication on their streams.
Together: TypeAlias = Callable[[nccl.Stream, nccl.Stream], object]

_DEFAULT_STREAM = 0


@dataclass(frozen=True)
class Step:
    """The functions that a step calls; None enqueues nothing.

    Attributes:
        compute: enqueues the compute.
        communicate: enqueues the communication.
        together: enqueues both, in place of the other two.
        first: which of the two is called first.
    """

    compute: Enqueue | None
    communicate: Enqueue | None
    together: Together | None = None
    first: str = "compute"


@dataclass(frozen=True)
class Ran:
    """The times of a step on this rank, in seconds since it began.

    Attributes:
        seconds: until all work was done.
        compute: start and end of the compute, by its events; both 0.0 if there was none.
        communication: start and end of the communication, by its events.
    """

    seconds: float
    compute: Span
    communication: Span


class Steps:
    """Runs the steps of one rank on two streams.

    Args:
        comm: the communicator.
        compute: the compute stream.
        communication: the communication stream.

    Attributes:
        own: a stream for the lab's own communication.
    """

    def __init__(
        self, comm: nccl.Communicator, compute: nccl.Stream, communication: nccl.Stream
    ) -> None:
        self.comm = comm
        self.compute = compute
        self.communication = communication
        self.own = new_stream(comm)
        self._origin, self._default_end = new_event(comm), new_event(comm)
        self._ends = [new_event(comm) for _ in range(2)]
        self._compute_events = [new_event(comm) for _ in range(2)]
        self._communication_events = [new_event(comm) for _ in range(2)]
        # The origin is recorded on an idle stream: on CPUs, in this thread.
        self._idle = _DEFAULT_STREAM if comm.provider == "host" else self.own

    def run(self, step: Step) -> Ran:
        """Run a step and wait until it is done."""
        self._origin.record(self._idle)
        calls = [
            (step.compute, self.compute, self._compute_events),
            (step.communicate, self.communication, self._communication_events),
        ]
        if step.together is not None:
            self._together(step.together)
            calls.clear()
        for enqueue, stream, events in calls if step.first == "compute" else calls[::-1]:
            if enqueue is not None:
                events[0].record(stream)
                enqueue(stream)
                events[1].record(stream)
        streams = self.compute, self.communication
        for end, stream in zip(self._ends, streams, strict=True):
            end.record(stream)
        self._default_end.record(_DEFAULT_STREAM)
        for stream in streams:
            stream.synchronize()
        for event in (self._origin, self._default_end):
            event.synchronize()
        ends = [*self._ends, self._default_end]
        has_compute = step.compute is not None or step.together is not None
        has_communication = step.communicate is not None or step.together is not None
        return Ran(
            max(self._origin.elapsed_time(end) for end in ends),
            self._span(self._compute_events) if has_compute else Span(0.0, 0.0),
            self._span(self._communication_events) if has_communication else Span(0.0, 0.0),
        )

    def _together(self, together: Together) -> None:
        self._compute_events[0].record(self.compute)
        self._communication_events[0].record(self.communication)
        together(self.compute, self.communication)
        self._compute_events[1].record(self.compute)
        self._communication_events[1].record(self.communication)

    def _span(self, events: list[nccl.Event]) -> Span:
        began, ended = (self._origin.elapsed_time(event) for event in events)
        return Span(began, ended)


# --- all ranks


def new_stream(comm: nccl.Communicator, priority: int = 0) -> nccl.Stream:
    """Create a stream on the communicator's device."""
    device = comm.device if comm.provider == "cuda" else None
    return nccl.Stream(comm.provider, device=device, priority=priority)


def new_event(comm: nccl.Communicator, *, timing: bool = True) -> nccl.Event:
    """Create an event on the communicator's device."""
    device = comm.device if comm.provider == "cuda" else None
    return nccl.Event(comm.provider, device=device, timing=timing)


def align(comm: nccl.Communicator, stream: nccl.Stream) -> None:
    """Return at about the same time on all ranks."""
    comm.barrier(stream=stream)
    stream.synchronize()


def timed(
    comm: nccl.Communicator,
    stream: nccl.Stream,
    enqueue: Callable[[nccl.Stream], object],
    times: int = 1,
) -> float:
    """The seconds of work on a stream on this rank; all ranks begin at about the same time."""
    align(comm, stream)
    began = time.perf_counter()
    for _ in range(times):
        enqueue(stream)
    stream.synchronize()
    return time.perf_counter() - began


def maximum(comm: nccl.Communicator, stream: nccl.Stream, values: Sequence[float]) -> list[float]:
    """The maximum of each value over the ranks, all of which pass the same number of values."""
    if comm.provider == "host":
        memory = (ctypes.c_double * len(values))(*values)
        comm.all_reduce(
            ctypes.addressof(memory), nccl.MAX, count=len(values), dtype="float64", stream=stream
        )
        stream.synchronize()
        return list(memory)
    import torch  # only GPUs need it

    there = torch.tensor(values, dtype=torch.float64, device=f"cuda:{comm.device}")
    torch.cuda.current_stream(there.device).synchronize()
    comm.all_reduce(there, nccl.MAX, stream=stream)
    stream.synchronize()
    agreed: list[float] = there.tolist()
    return agreed
