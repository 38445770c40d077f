"""The lanes of a trace: streams, the default streams of threads, and threads."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from typing import NamedTuple

from pynccl.tools.trace.model import (
    Communicator,
    GraphLaunch,
    Operation,
    ProcessTrace,
    Range,
    Wait,
)

__all__ = ["Interval", "Lane", "Lanes", "length", "union", "without"]

_LEGACY, _PER_THREAD = 1, 2  # CU_STREAM_LEGACY and CU_STREAM_PER_THREAD

Interval = tuple[int, int]


class Lane(NamedTuple):
    """A sequence of events in order: a stream or a thread.

    Attributes:
        stream: its handle; None for a thread of the host.
        thread: the thread, or the thread whose default stream this is.
        device: the device of a CUDA default stream, whose handle is the same on all devices.
    """

    stream: int | None
    thread: int | None = None
    device: int | None = None

    @property
    def is_thread(self) -> bool:
        return self.stream is None

    @property
    def blocks_thread(self) -> bool:
        """Whether it is a CPU thread's default stream, whose operations the thread itself runs."""
        return self.stream == 0 and self.thread is not None


class Lanes:
    """The lanes of one process."""

    def __init__(self, trace: ProcessTrace) -> None:
        self._trace = trace
        self._devices = {
            one.device for one in trace.communicators.values() if one.provider == "cuda"
        }
        # Only operations know their provider. Without any, streams are taken to be the host's.
        self._only_cuda = bool(trace.communicators) and all(
            one.provider == "cuda" for one in trace.communicators.values()
        )
        self._numbers: dict[Lane, int] = {}
        for operation in trace.operations:
            self._number(self.of_operation(operation))
        for launch in trace.launches:
            self._number(self.of_launch(launch))

    def of_operation(self, operation: Operation) -> Lane:
        communicator = self._trace.communicator_of(operation)
        return self._lane(operation.stream, operation.thread, communicator)

    def of_launch(self, launch: GraphLaunch) -> Lane:
        return self._lane(launch.stream, launch.thread)

    def of_range(self, range_: Range) -> Lane:
        if range_.stream is None:
            return Lane(None, range_.thread)
        return self._lane(range_.stream, range_.thread)

    def of_stream(self, stream: int) -> Lane:
        """The lane of a stream handle; handle 0 on CPUs belongs to an unknown thread here."""
        return self._lane(stream, None)

    def of_wait(self, wait: Wait) -> Lane:
        """The lane that waits."""
        if not wait.on_device or wait.stream is None:
            return Lane(None, wait.thread)
        return self._lane(wait.stream, wait.thread)

    def awaited(self, wait: Wait) -> Lane | None:
        """The stream whose work a thread waits for; None for other waits."""
        if wait.what != "stream" or wait.stream is None:
            return None
        return self._lane(wait.stream, wait.thread)

    def _lane(
        self, stream: int, thread: int | None, communicator: Communicator | None = None
    ) -> Lane:
        is_cuda, device = self._only_cuda, None
        if communicator is not None:
            is_cuda, device = communicator.provider == "cuda", communicator.device
        if not is_cuda:
            return Lane(0, thread) if stream == 0 else Lane(stream)
        if stream == _PER_THREAD:
            return Lane(_PER_THREAD, thread)
        if stream not in (0, _LEGACY):
            return Lane(stream)
        if device is None and len(self._devices) == 1:
            device = next(iter(self._devices))
        return Lane(0, None, device)

    def _number(self, lane: Lane) -> None:
        if lane.thread is None and lane.device is None:
            self._numbers.setdefault(lane, len(self._numbers) + 1)

    def name(self, lane: Lane) -> str:
        """The lane's label: "stream 1 (0x7f...)", "default stream of thread 7", "thread 7"."""
        if lane.thread is not None:
            thread = "main thread" if lane.thread == self._trace.pid else f"thread {lane.thread}"
            return thread if lane.is_thread else f"default stream of {thread}"
        if lane.device is not None or lane.stream == 0:
            return "default stream" + (
                f" of device {lane.device}" if len(self._devices) > 1 else ""
            )
        number = self._numbers.setdefault(lane, len(self._numbers) + 1)
        return f"stream {number} (0x{lane.stream:x})"

    def interval(self, one: Operation | GraphLaunch | Range | Wait) -> Interval | None:
        """When it ran on its lane; until the end of the trace if it has not ended.

        Returns None if it has not run.
        """
        if one.began is None:
            return None
        ended = self._trace.ended if one.ended is None else one.ended
        return one.began, max(one.began, ended)


# --- sets of times, as sorted lists of disjoint intervals


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The times that are in any of the intervals."""
    result: list[Interval] = []
    for began, ended in sorted(intervals):
        if ended <= began:
            continue
        if result and began <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], ended))
        else:
            result.append((began, ended))
    return result


def length(intervals: Iterable[Interval]) -> int:
    return sum(ended - began for began, ended in intervals)


def without(one: Interval, others: list[Interval]) -> list[Interval]:
    """The times of an interval that are not in a set."""
    result = []
    at = one[0]
    for began, ended in others[bisect(others, at, key=lambda other: other[1]) :]:
        if began >= one[1]:
            break
        if began > at:
            result.append((at, began))
        at = ended
    if at < one[1]:
        result.append((at, one[1]))
    return result
