"""One step on two streams, timed by events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pynccl import nccl
from pynccl.tools.lab.agreement import new_event, new_stream
from pynccl.tools.lab.row import Span

__all__ = ["Enqueue", "Ran", "Step", "Steps", "Together"]

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
