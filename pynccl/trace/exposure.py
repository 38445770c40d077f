"""How much of the communication of a process is exposed: not hidden behind compute."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from pynccl.trace.lanes import Interval, Lane, Lanes, length, union, without
from pynccl.trace.model import ProcessTrace, Wait

__all__ = ["RANGES", "WAITS", "Exposed", "exposed"]

RANGES = "compute ranges"
WAITS = "waits"


@dataclass(frozen=True)
class Exposed:
    """The exposed time of a trace, in nanoseconds.

    Attributes:
        definition: RANGES or WAITS; see exposed().
        operations: of each operation of the trace, in their order. It is None where a call was
            captured, failed, or was not timed.
        launches: of each launch of a graph, in their order.
        total: in which any communication was exposed. It is less than the sum of the operations
            where several run at once, and more where waits are for no known one.
        communication: in which any operation or graph ran.
        compute: in which any compute range was open.
    """

    definition: str
    operations: list[int | None]
    launches: list[int | None]
    total: int
    communication: int
    compute: int


def exposed(trace: ProcessTrace) -> Exposed:
    """The exposed communication of one process.

    With ranges of compute (``nccl.range(name, compute=True)``) the exposed time of an operation is
    the part of its time on its stream in which no range of compute was open, on any stream or
    thread of the process.

    Without, it is the time in which threads or streams of compute waited: operations on the default
    stream of a thread on CPUs, which the thread itself runs, and waits. A wait for a known
    operation is its exposed time; of a wait for a stream, the time in it in which operations ran
    there. Not counted: waits for streams without operations, and the waits of streams that have
    operations for unknown ones.

    Args:
        trace: of one process, with times.
    """
    lanes = Lanes(trace)
    computing = union(
        interval
        for one in trace.ranges
        if one.compute and (interval := lanes.interval(one)) is not None
    )
    running = [
        None if one.graph is not None or one.failed else lanes.interval(one)
        for one in trace.operations
    ]
    launched = [lanes.interval(one) for one in trace.launches]
    communicating = union(one for one in (*running, *launched) if one is not None)
    if any(one.compute for one in trace.ranges):
        open_ = [part for one in communicating for part in without(one, computing)]
        return Exposed(
            RANGES,
            [_outside(one, computing) for one in running],
            [_outside(one, computing) for one in launched],
            length(open_),
            length(communicating),
            length(computing),
        )
    parts, graphs, others = _waited(trace, lanes, running, launched)
    every = union([*(one for own in (*parts, *graphs) for one in own), *others])
    return Exposed(
        WAITS,
        [
            None if ran is None else length(union(own))
            for ran, own in zip(running, parts, strict=True)
        ],
        [
            None if ran is None else length(union(own))
            for ran, own in zip(launched, graphs, strict=True)
        ],
        length(every),
        length(communicating),
        0,
    )


def _outside(one: Interval | None, computing: list[Interval]) -> int | None:
    return None if one is None else length(without(one, computing))


_Parts = list[list[Interval]]


def _lengths(running: list[Interval | None], parts: _Parts) -> list[int | None]:
    return [
        None if ran is None else length(union(own)) for ran, own in zip(running, parts, strict=True)
    ]


class _OnLane(NamedTuple):
    """An operation or launch that has run, and the times of waits for it."""

    ended: int
    began: int
    waited: list[Interval]


def _waited(
    trace: ProcessTrace,
    lanes: Lanes,
    running: list[Interval | None],
    launched: list[Interval | None],
) -> tuple[_Parts, _Parts, list[Interval]]:
    """The times that were waited for each operation and launch, and for none of them."""
    parts: _Parts = [[] for _ in running]
    graphs: _Parts = [[] for _ in launched]
    others: list[Interval] = []
    by_lane: dict[Lane, list[_OnLane]] = defaultdict(list)
    by_sequence: dict[tuple[str, int], int] = {}
    for index, (operation, ran) in enumerate(zip(trace.operations, running, strict=True)):
        by_sequence[operation.communicator, operation.sequence] = index
        if ran is not None:
            lane = lanes.of_operation(operation)
            parts[index] += [ran] if lane.blocks_thread else []
            by_lane[lane].append(_OnLane(ran[1], ran[0], parts[index]))
    for launch, ran, own in zip(trace.launches, launched, graphs, strict=True):
        if ran is not None:
            by_lane[lanes.of_launch(launch)].append(_OnLane(ran[1], ran[0], own))
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
    return parts, graphs, others


def _share(span: Interval, ordered: list[_OnLane]) -> None:
    """Give a wait for a stream to what ran there at the time."""
    for one in ordered[bisect(ordered, span[0], key=lambda one: one.ended) :]:
        if one.began >= span[1]:
            break
        one.waited.append((max(one.began, span[0]), min(one.ended, span[1])))


def _operation(wait: Wait, by_sequence: dict[tuple[str, int], int]) -> int | None:
    if wait.communicator is None or wait.sequence is None:
        return None
    return by_sequence.get((wait.communicator, wait.sequence))
