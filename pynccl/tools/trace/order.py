"""The order check: finds operations of a process that may use a buffer at the same time.

Two operations conflict if their buffers overlap and at least one of them writes. They are ordered
if a chain of the following leads from one to the other:

* the order of a stream; the operations of one group and communicator join the order of their
  streams;
* a thread that waited for a stream, an event or a Work: its later calls come after;
* a stream that waits for an event: later work on the stream comes after;
* on CPUs, an operation on a thread's default stream, which ends before its call returns.

An event comes after the work that was on its stream when it was recorded, so a wait for an event
that was recorded before the trace orders nothing in it. Ordering outside of pynccl, such as locks
between threads, is not in a trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from pynccl.tools.trace.lanes import Interval, Lane, Lanes
from pynccl.tools.trace.model import GraphLaunch, Operation, ProcessTrace, Wait

__all__ = ["Conflict", "Use", "check"]

_Clock = dict[Lane, int]  # for each lane, how many of its operations come before


@dataclass(frozen=True)
class Use:
    """How an operation or a graph uses the bytes of a conflict.

    Attributes:
        name: name of the operation, with its communicator and sequence number.
        stream: the name of its lane.
        writes: whether it writes the bytes; otherwise it reads them.
    """

    name: str
    stream: str
    writes: bool


@dataclass(frozen=True)
class Conflict:
    """Two operations that use the same bytes in no known order.

    Attributes:
        error: whether they ran at the same time; otherwise they may do so in another run.
        first: the operation called first.
        second: the other one.
        address: the first byte that both use.
        nbytes: number of bytes that both use.
        overlap: nanoseconds in which both ran; 0 if none.
        times: number of such pairs of the same kinds, streams and buffers.
    """

    error: bool
    first: Use
    second: Use
    address: int
    nbytes: int
    overlap: int
    times: int

    def text(self) -> str:
        """Describe the conflict.

        Returns:
            One line of text.
        """
        verbs = ["writes" if use.writes else "reads" for use in (self.first, self.second)]
        what = "race" if self.error else "possible race"
        end = (
            f"while both ran for {self.overlap / 1e6:.3f} ms"
            if self.error
            else "with nothing that orders them; they did not run at the same time here"
        )
        again = f" ({self.times} times)" if self.times > 1 else ""
        return (
            f"{what}: {self.second.name} on {self.second.stream} {verbs[1]} "
            f"{self.nbytes} bytes at 0x{self.address:x} that {self.first.name} on "
            f"{self.first.stream} {verbs[0]}, {end}{again}"
        )


@dataclass(frozen=True)
class _Access:
    began: int
    ended: int
    writes: bool


@dataclass
class _Node:
    """An operation, or the launch of a graph.

    Attributes:
        place: position among those of its lane, from 1.
        before: its predecessors.
        after: the operations that are complete once it is.
    """

    one: Operation | GraphLaunch
    lane: Lane
    accesses: list[_Access]
    place: int = 0
    before: _Clock = field(default_factory=dict)
    after: _Clock = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.one.kind if isinstance(self.one, Operation) else f"graph {self.one.graph}"

    @property
    def name(self) -> str:
        if isinstance(self.one, Operation):
            return f"{self.kind} (operation {self.one.sequence} of {self.one.communicator})"
        return f"the launch of {self.kind}"

    def comes_after(self, other: _Node) -> bool:
        return self.before.get(other.lane, 0) >= other.place

    def overlap(self, other: _Node) -> int:
        """The time in which both ran, in nanoseconds."""
        if self.one.began is None or other.one.began is None:
            return 0
        ends = [one.ended for one in (self.one, other.one) if one.ended is not None]
        began = max(self.one.began, other.one.began)
        # Without an end, both were still running when the trace ended: at least one nanosecond.
        return max(min(ends) - began, 0) if ends else 1


def check(trace: ProcessTrace) -> list[Conflict]:
    """Find the conflicts of one process.

    Args:
        trace: the trace of one process, with times.

    Returns:
        The conflicts; those whose operations ran at the same time come first.
    """
    nodes = _Order(trace).run()
    lanes = Lanes(trace)
    found: dict[tuple[object, ...], Conflict] = {}
    for first, second, own, other in _conflicts(nodes):
        overlap = first.overlap(second)
        first_use = Use(first.name, lanes.name(first.lane), own.writes)
        second_use = Use(second.name, lanes.name(second.lane), other.writes)
        began, ended = max(own.began, other.began), min(own.ended, other.ended)
        key = (overlap > 0, first.kind, second.kind, first.lane, second.lane, began, ended)
        one = Conflict(overlap > 0, first_use, second_use, began, ended - began, overlap, times=1)
        known = found.get(key)
        if known is not None:
            most = max(known, one, key=lambda conflict: conflict.overlap)
            one = replace(most, times=known.times + 1)
        found[key] = one
    return sorted(found.values(), key=lambda conflict: not conflict.error)


# --- the happens-before order


class _Order:
    """Walks the calls of a process, and tracks the predecessors of each stream and thread."""

    def __init__(self, trace: ProcessTrace) -> None:
        self._trace = trace
        self._lanes = Lanes(trace)
        self._streams: dict[Lane, _Clock] = defaultdict(dict)
        self._threads: dict[int, _Clock] = defaultdict(dict)
        self._on_lane: dict[Lane, list[_Node]] = defaultdict(list)
        self._by_sequence: dict[tuple[str, int | None, int], _Node] = {}
        # What threads know to be complete from a given time on.
        self._learned: dict[int, list[tuple[int, _Clock]]] = defaultdict(list)
        self._recorded: dict[_Record | None, _Clock] = {}

    def run(self) -> list[_Node]:
        """All operations that ran, with their predecessors, in the order of their calls."""
        batches = self._batches()
        calls: list[tuple[int, int, Callable[[], None]]] = [
            (batch[-1].one.called, 3, partial(self._issue, batch)) for batch in batches
        ]
        for wait in self._trace.waits:
            if wait.on_device:
                calls.append((wait.called_at, 1, partial(self._pass_wait, wait)))
            elif wait.ended is not None:
                calls.append((wait.began, 2, partial(self._begin_wait, wait, wait.ended)))
        records = {record for wait in self._trace.waits if (record := _record(wait)) is not None}
        calls += [(record.time, 0, partial(self._record_event, record)) for record in records]
        for _, _, call in sorted(calls, key=lambda one: one[:2]):
            call()
        return [node for batch in batches for node in batch]

    def _batches(self) -> list[list[_Node]]:
        """Operations that are issued together: those of one group and communicator."""
        captured: dict[int, list[_Access]] = defaultdict(list)
        batches: dict[object, list[_Node]] = {}
        for index, one in enumerate(self._trace.operations):
            if one.graph is not None:
                captured[one.graph] += _accesses(one)
            elif not one.failed:
                key = index if one.group is None else (one.group, one.communicator, one.rank)
                node = _Node(one, self._lanes.of_operation(one), _accesses(one))
                batches.setdefault(key, []).append(node)
        for index, launch in enumerate(self._trace.launches):
            node = _Node(launch, self._lanes.of_launch(launch), captured[launch.graph])
            batches["launch", index] = [node]
        return sorted(batches.values(), key=lambda batch: batch[-1].one.called)

    def _begin_wait(self, wait: Wait, ended: int) -> None:
        """Begin a thread's wait. Its target was called before."""
        if (known := self._awaited(wait)) is not None:
            self._learned[wait.thread].append((ended, known))

    def _issue(self, batch: list[_Node]) -> None:
        thread = self._learn(batch[0].one.thread, batch[-1].one.called)
        before = dict(thread)
        lanes = {node.lane for node in batch}
        for lane in lanes:
            _join(before, self._streams[lane])
        # NCCL lets the streams of a group wait for each other, before and after it.
        after = dict(before)
        for node in batch:
            self._on_lane[node.lane].append(node)
            node.place = after[node.lane] = len(self._on_lane[node.lane])
            node.before, node.after = before, after
            if isinstance(node.one, Operation):
                key = node.one.communicator, node.one.rank, node.one.sequence
                self._by_sequence[key] = node
            if node.lane.blocks_thread and node.one.returned is not None:
                self._learned[node.one.thread].append((node.one.returned, after))
        for lane in lanes:
            self._streams[lane] = dict(after)

    def _record_event(self, record: _Record) -> None:
        clock = dict(self._streams[self._lanes.of_stream(record.stream)])
        _join(clock, self._ended(record.time))
        self._recorded[record] = clock

    def _pass_wait(self, wait: Wait) -> None:
        """Order a stream's wait before its later work."""
        if (known := self._awaited(wait)) is not None:
            _join(self._streams[self._lanes.of_wait(wait)], known)

    def _learn(self, thread: int, time: int) -> _Clock:
        """The operations that a thread knows to be complete at a given time."""
        clock, later = self._threads[thread], []
        for since, known in self._learned[thread]:
            if since > time:
                later.append((since, known))
            else:
                _join(clock, known)
        self._learned[thread] = later
        return clock

    def _awaited(self, wait: Wait) -> _Clock | None:
        """The operations of the trace that are complete once a wait is over; None if there are
        none.
        """
        if (lane := self._lanes.awaited(wait)) is not None:
            return dict(self._streams[lane])
        if wait.communicator is None or wait.sequence is None:
            return self._recorded.get(_record(wait))
        node = self._by_sequence.get((wait.communicator, wait.rank, wait.sequence))
        return None if node is None else node.after

    def _ended(self, time: int) -> _Clock:
        """The operations that had ended at a given time."""
        clock: _Clock = {}
        for nodes in self._on_lane.values():
            for node in reversed(nodes):
                if node.one.ended is not None and node.one.ended <= time:
                    _join(clock, node.after)
                    break
        return clock


class _Record(NamedTuple):
    """The record of an event: its time and stream."""

    time: int
    stream: int


def _record(wait: Wait) -> _Record | None:
    if wait.event_recorded is None or wait.event_stream is None:
        return None
    return _Record(wait.event_recorded, wait.event_stream)


def _join(clock: _Clock, other: _Clock) -> None:
    for lane, place in other.items():
        if place > clock.get(lane, 0):
            clock[lane] = place


# --- operations that use the same bytes


def _accesses(operation: Operation) -> list[_Access]:
    parts = [
        (operation.sendbuff, operation.sendbytes, False),
        (operation.recvbuff, operation.recvbytes, True),
    ]
    return [_Access(at, at + nbytes, writes) for at, nbytes, writes in parts if at and nbytes]


def _conflicts(nodes: list[_Node]) -> Iterator[tuple[_Node, _Node, _Access, _Access]]:
    """Pairs of operations in the order of their calls, with how they use the same bytes."""
    touching = _touching({(a.began, a.ended) for node in nodes for a in node.accesses})
    history: dict[Interval, dict[tuple[Lane, bool], list[tuple[_Node, _Access]]]] = {
        interval: defaultdict(list) for interval in touching
    }
    for node in nodes:
        for access in node.accesses:
            for interval in touching[access.began, access.ended]:
                for (lane, writes), earlier in history[interval].items():
                    if lane != node.lane and (writes or access.writes):
                        for other, own in _unordered(node, earlier):
                            yield other, node, own, access
        for access in node.accesses:
            kept = history[access.began, access.ended]
            kept[node.lane, access.writes].append((node, access))


def _unordered(
    node: _Node, earlier: list[tuple[_Node, _Access]]
) -> Iterator[tuple[_Node, _Access]]:
    """The accesses of a stream that may run at the same time: all that did, else the last one."""
    last = True
    for other, access in reversed(earlier):
        if node.comes_after(other):
            return  # and thus after all before it
        overlaps = node.overlap(other) > 0
        if overlaps or last:
            yield other, access
        last = False
        done = other.one.ended is not None and node.one.began is not None
        if done and (other.one.ended or 0) <= (node.one.began or 0):
            return  # and so did all before it


def _touching(intervals: set[Interval]) -> dict[Interval, list[Interval]]:
    """Map each interval to those that overlap with it, including itself."""
    result: dict[Interval, list[Interval]] = {one: [one] for one in intervals}
    open_: list[Interval] = []
    for one in sorted(intervals):
        open_ = [other for other in open_ if other[1] > one[0]]
        for other in open_:
            result[one].append(other)
            result[other].append(one)
        open_.append(one)
    return result
