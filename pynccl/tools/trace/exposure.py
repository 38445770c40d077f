"""Exposed communication of a process: the part that is not hidden behind compute."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from pynccl.tools.trace.lanes import Interval, Lane, Lanes, length, union, without
from pynccl.tools.trace.model import GraphLaunch, Operation, ProcessTrace, Wait

__all__ = ["RANGES", "WAITS", "Exposed", "exposed"]

# The definitions of exposed time: by ranges of compute or, without such ranges, by waits.
RANGES, WAITS = "compute ranges", "waits"


@dataclass(frozen=True)
class Exposed:
    """The exposed time of a trace, in nanoseconds.

    Attributes:
        definition: RANGES or WAITS; see exposed().
        operations: for each operation of the trace, in order. None if the call was captured,
            failed, or was not timed.
        launches: for each launch of a graph, in order. None if the trace contains the operations
            that ran in it.
        runs: for each operation in launches, in order.
        total: time in which any communication was exposed. It is less than the sum over the
            operations if several run at once, and more if waits are for unknown operations.
        communication: time in which any operation or graph ran.
        compute: time in which any compute range was open.
    """

    definition: str
    operations: list[int | None]
    launches: list[int | None]
    runs: list[int | None]
    total: int
    communication: int
    compute: int


def exposed(trace: ProcessTrace) -> Exposed:
    """Compute the exposed communication of one process.

    With compute ranges (``nccl.range(name, compute=True)``), the exposed time of an operation is
    the part of its time on its stream in which no compute range was open on any stream or thread of
    the process.

    Without them, it is the time in which threads or compute streams waited: operations on a CPU
    thread's default stream, which the thread itself runs, and waits. A wait for a known operation
    is exposed time of that operation. A wait for a stream is exposed time of the operations that
    ran there in the meantime. Three cases do not count: operations on a thread that runs them for
    other threads, which wait for them; waits for streams without operations; and waits of streams
    with operations for unknown ones.

    Args:
        trace: the trace of one process, with times.

    Returns:
        The exposed time of each operation and of the process, in nanoseconds.
    """
    lanes = Lanes(trace)
    computing = union(
        interval
        for one in trace.ranges
        if one.compute and (interval := lanes.interval(one)) is not None
    )
    known = {_launch(one) for one in trace.runs if one.began is not None}
    ran = [
        *(
            None if one.graph is not None or one.failed else lanes.interval(one)
            for one in trace.operations
        ),
        *(None if _launch(one) in known else lanes.interval(one) for one in trace.launches),
        *map(lanes.interval, trace.runs),
    ]
    communicating = union(one for one in ran if one is not None)
    if any(one.compute for one in trace.ranges):
        definition = RANGES
        open_ = [part for one in communicating for part in without(one, computing)]
        parts = [[] if one is None else without(one, computing) for one in ran]
    else:
        definition = WAITS
        parts, others = _waited(trace, lanes, ran)
        open_ = union([*(part for own in parts for part in own), *others])
    exposed_ = [
        None if one is None else length(union(own)) for one, own in zip(ran, parts, strict=True)
    ]
    first, last = len(trace.operations), len(ran) - len(trace.runs)
    return Exposed(
        definition,
        exposed_[:first],
        exposed_[first:last],
        exposed_[last:],
        length(open_),
        length(communicating),
        length(computing),
    )


_Name = tuple[str, int | None, int]  # communicator, rank and sequence of an operation


class _OnLane(NamedTuple):
    """An operation or launch that has run, with the times of waits for it."""

    ended: int
    began: int
    waited: list[Interval]


def _waited(
    trace: ProcessTrace, lanes: Lanes, ran: list[Interval | None]
) -> tuple[list[list[Interval]], list[Interval]]:
    """The waiting times for each operation, launch and operation in a launch, and for others."""
    parts: list[list[Interval]] = [[] for _ in ran]
    others: list[Interval] = []
    by_lane: dict[Lane, list[_OnLane]] = defaultdict(list)
    by_sequence: dict[_Name, int] = {
        (one.communicator, one.rank, one.sequence): index
        for index, one in enumerate(trace.operations)
    }
    workers = _workers(trace, by_sequence)
    # A wait for an operation in a graph waits for the stream of the launch.
    launch_lanes = {_launch(one): lanes.of_launch(one) for one in trace.launches}
    entries: list[Operation | GraphLaunch] = [
        *trace.operations,
        *trace.launches,
        *trace.runs,
    ]
    for index, (one, interval) in enumerate(zip(entries, ran, strict=True)):
        if interval is None:
            continue
        lane = launch_lanes.get(_launch(one))
        if isinstance(one, Operation) and one.graph is None:
            lane = lanes.of_operation(one)
            if lane.blocks_thread and one.thread not in workers:
                parts[index].append(interval)
        if lane is not None:
            by_lane[lane].append(_OnLane(interval[1], interval[0], parts[index]))
    for ordered in by_lane.values():
        ordered.sort(key=lambda one: one.ended)
    for wait in trace.waits:
        span = lanes.interval(wait)
        index_ = _operation(wait, by_sequence)
        if span is None:
            continue
        if index_ is not None:
            parts[index_].append(span)
        elif wait.on_device and lanes.of_wait(wait) in by_lane:
            continue  # communication waits for compute, or for other communication
        elif (awaited := lanes.awaited(wait)) is None:
            others.append(span)
        else:
            _share(span, by_lane.get(awaited, []))
    return parts, others


def _launch(one: Operation | GraphLaunch) -> tuple[int | None, int]:
    """A key that is equal for a launch and the operations in it."""
    return one.graph, one.called


def _workers(trace: ProcessTrace, by_sequence: dict[_Name, int]) -> set[int]:
    """The threads that run operations for others, such as those of torch's backend."""
    workers = set()
    for wait in trace.waits:
        index = _operation(wait, by_sequence)
        if index is not None and trace.operations[index].thread != wait.thread:
            workers.add(trace.operations[index].thread)
    return workers


def _share(span: Interval, ordered: list[_OnLane]) -> None:
    """Attribute a wait for a stream to the operations that ran there at the time."""
    for one in ordered[bisect(ordered, span[0], key=lambda one: one.ended) :]:
        if one.began >= span[1]:
            break
        one.waited.append((max(one.began, span[0]), min(one.ended, span[1])))


def _operation(wait: Wait, by_sequence: dict[_Name, int]) -> int | None:
    if wait.communicator is None or wait.sequence is None:
        return None
    return by_sequence.get((wait.communicator, wait.rank, wait.sequence))
