"""Trace files in Chrome's trace JSON, which Perfetto and chrome://tracing open.

A file is an object with the viewers' events under "traceEvents". The traces themselves, which
load() reads, are under "pynccl".
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from pynccl import _C
from pynccl._internal.typed_json import FieldError, build, load_document
from pynccl.tools.trace import recording
from pynccl.tools.trace.bandwidth import operation_bandwidths
from pynccl.tools.trace.lanes import Lane, Lanes
from pynccl.tools.trace.merge import Match, Merged, merge
from pynccl.tools.trace.model import (
    Communicator,
    GraphLaunch,
    KernelTimes,
    Operation,
    ProcessTrace,
    ProxyWaits,
    Range,
    TraceError,
    Wait,
)
from pynccl.tools.trace.shape import total

__all__ = ["document", "load", "parse", "save"]

_FORMAT = "pynccl trace"
_VERSION = 2
_HEX = ("sendbuff", "recvbuff", "stream", "event_stream")
# The defaults of the fields that most operations and waits do not set.
_UNSET = {one.name: one.default for cls in (Operation, Wait) for one in fields(cls)}

Event = dict[str, Any]
_Path: TypeAlias = "str | os.PathLike[str]"


def save(traces: ProcessTrace | Sequence[ProcessTrace], path: _Path) -> None:
    """Write a trace file.

    Args:
        traces: of one process, or of several processes of a program, which are aligned to one
            clock.
        path: the file; it is compressed if the name ends in ".gz".

    Raises:
        TraceError: traces is empty, or the traces do not belong together.
        OSError: the file cannot be written.
    """
    text = json.dumps(document(traces), separators=(",", ":"), allow_nan=False)
    data = text.encode()
    compressed = os.fspath(path).endswith(".gz")
    _C.write_new_file(os.fspath(path), gzip.compress(data, 6) if compressed else data)


def load(path: _Path) -> list[ProcessTrace]:
    """Read a trace or a recording, which are distinguished by their contents.

    Args:
        path: a file of :func:`save`, nccl.trace() or PYNCCL_RECORD.

    Returns:
        The processes in it; several if traces were merged. A recording contains one, which has no
        device times.

    Raises:
        TraceError: the file is neither a trace nor a recording.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        if data.startswith(recording.MAGIC):
            return [recording.parse(data)]
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        return parse(data.decode())
    except (TraceError, UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: this is not a trace or recording of pynccl: {error}") from None


def parse(text: str) -> list[ProcessTrace]:
    """Parse the text of a file written by :func:`save`.

    Args:
        text: the JSON text.

    Returns:
        The traces in it.

    Raises:
        TraceError: the text is not a trace.
    """
    try:
        processes = load_document(text, _FORMAT, _VERSION, "pynccl").get("processes")
    except FieldError as error:
        raise TraceError(str(error)) from None
    if not isinstance(processes, list) or not processes:
        raise TraceError("it contains no process")
    traces = []
    for number, process in enumerate(processes):
        try:
            traces.append(_process(process))
        except (TraceError, FieldError) as error:
            raise TraceError(f"process {number}: {error}") from None
    return traces


def _process(value: object) -> ProcessTrace:
    members = value.get("communicators") if isinstance(value, dict) else None
    if not isinstance(members, list):
        raise TraceError(f"{value!r:.60} is not an object with a list of communicators")
    found = [build(Communicator, one) for one in members]
    return build(ProcessTrace, value, communicators={(one.id, one.rank): one for one in found})


def _process_json(trace: ProcessTrace) -> dict[str, Any]:
    """Convert a trace for _process(). Fields that have their defaults are omitted."""
    result: dict[str, Any] = dict(vars(trace))
    for name in ("operations", "waits", "ranges", "launches", "runs"):
        result[name] = [_set_fields(one) for one in result[name]]
    result["communicators"] = [vars(one) for one in trace.communicators.values()]
    return result


def document(traces: ProcessTrace | Sequence[ProcessTrace]) -> dict[str, Any]:
    """Build the contents of a file.

    Args:
        traces: one or several traces; several are merged.

    Returns:
        The JSON object: the events for Perfetto, and the data that :func:`parse` reads.

    Raises:
        TraceError: two traces are of the same rank of a communicator.
    """
    merged = merge([traces] if isinstance(traces, ProcessTrace) else traces)
    base = min(merged.time(i, _first(one)) for i, one in enumerate(merged.traces))
    writer = _Writer(merged, base)
    return {
        "pynccl": {
            "format": _FORMAT,
            "version": _VERSION,
            "base_ns": base,
            "clocks": [asdict(clock) for clock in merged.clocks],
            "processes": [_process_json(trace) for trace in merged.traces],
        },
        "displayTimeUnit": "ns",
        "otherData": {
            "format": _FORMAT,
            "base_ns": str(base),
            "base_time_ns": str(base + merged.traces[0].epoch),
        },
        "traceEvents": writer.events(),
    }


def _first(trace: ProcessTrace) -> int:
    """The first time in a trace, which may precede the start of the trace."""
    calls: list[Operation | GraphLaunch] = [*trace.operations, *trace.launches]
    others: list[Wait | Range] = [*trace.waits, *trace.ranges]
    times = [trace.began, *(one.called for one in calls), *(one.began for one in others)]
    times += [one.began for one in calls if one.began is not None]
    return min(times)


@dataclass
class _Span:
    """An entry of a lane, which becomes an event.

    Attributes:
        ended: None if it has not ended.
        more: further members of the event.
    """

    name: str
    category: str
    began: int
    ended: int | None
    args: Event
    instant: bool = False
    more: Event = field(default_factory=dict)


class _Writer:
    """Builds the events of merged traces."""

    def __init__(self, merged: Merged, base: int) -> None:
        self._merged = merged
        self._base = base
        self._tids = 0
        self._bandwidths = [operation_bandwidths(trace) for trace in merged.traces]
        ranks = [trace.rank for trace in merged.traces]
        if len(ranks) == 1:
            self._pids = [merged.traces[0].pid]
        elif None not in ranks and len(set(ranks)) == len(ranks):
            self._pids = [rank for rank in ranks if rank is not None]
        else:
            self._pids = list(range(len(ranks)))
        self._flows: dict[tuple[int, int], Event] = {}
        for identifier, match in enumerate(merged.matches, 1):
            self._add_flow(identifier, match)

    def _add_flow(self, identifier: int, match: Match) -> None:
        """Connect matching operations with arrows, in the order in which they began.

        They use bind_id, because events of phase "s" and "f" refer to a row and a time, which is
        ambiguous for operations of a group.
        """
        # In the order of the events in the file, which distinguishes those of equal time.
        begun = sorted(
            (began, one.trace, one.index)
            for one in match.members
            if (began := self._merged.began(one)) is not None
        )
        for _, trace, index in begun if len(begun) > 1 else ():
            flow: Event = {"bind_id": f"0x{identifier:x}"}
            self._flows[trace, index] = flow
            if (trace, index) != begun[0][1:]:
                flow["flow_in"] = True
            if (trace, index) != begun[-1][1:]:
                flow["flow_out"] = True

    def events(self) -> list[Event]:
        described: list[Event] = []
        timed: list[Event] = []
        for position in range(len(self._merged.traces)):
            self._process(position, described, timed)
        # The sort is stable: an enclosing event stays first, and a flow stays behind its slice.
        timed.sort(key=lambda event: event["ts"])
        return described + timed

    def _process(self, position: int, described: list[Event], timed: list[Event]) -> None:
        trace, pid = self._merged.traces[position], self._pids[position]
        label = f"rank {trace.rank} " if trace.rank is not None else ""
        name = f"{label}(pid {trace.pid} on {trace.host})"
        described.append(_metadata("process_name", pid, 0, name=name))
        described.append(_metadata("process_sort_index", pid, 0, sort_index=position))
        lanes = Lanes(trace)
        spans: dict[Lane, list[_Span]] = {}
        for lane, span in self._spans(position, lanes):
            spans.setdefault(lane, []).append(span)
        for lane in sorted(spans, key=lambda one: one.is_thread):  # streams first
            for row, events in enumerate(self._rows(position, spans[lane])):
                self._tids += 1
                title = lanes.name(lane) + (f" ({row + 1})" if row else "")
                described.append(_metadata("thread_name", pid, self._tids, name=title))
                order = self._tids
                described.append(_metadata("thread_sort_index", pid, self._tids, sort_index=order))
                timed += [event | {"pid": pid, "tid": self._tids} for event in events]

    def _rows(self, position: int, spans: list[_Span]) -> list[list[Event]]:
        """Split a lane into rows. Viewers cannot show slices in one row if they overlap without one
        containing the other.
        """
        infinity = float("inf")
        rows: list[tuple[list[float], list[Event]]] = [([], [])]
        ends = [infinity if span.ended is None else span.ended for span in spans]
        order = sorted(range(len(spans)), key=lambda i: (spans[i].began, -ends[i]))
        for i in order:
            span, end = spans[i], spans[i].began if spans[i].instant else ends[i]
            for open_, _ in rows:
                while open_ and open_[-1] <= span.began and open_[-1] != infinity:
                    open_.pop()
            fitting = next((row for row in rows if not row[0] or end <= row[0][-1]), None)
            if fitting is None:
                rows.append(fitting := ([], []))
            if not span.instant:
                fitting[0].append(end)
            fitting[1].append(self._event(position, span))
        return [events for _, events in rows]

    def _event(self, position: int, span: _Span) -> Event:
        began = (self._merged.time(position, span.began) - self._base) / 1000
        event = {"name": span.name, "cat": span.category, "ts": began, "args": span.args}
        event |= span.more
        if span.instant:
            return event | {"ph": "i", "s": "t"}
        if span.ended is None:
            return event | {"ph": "B"}
        return event | {"ph": "X", "dur": max(span.ended - span.began, 0) / 1000}

    def _spans(self, position: int, lanes: Lanes) -> Iterator[tuple[Lane, _Span]]:
        trace = self._merged.traces[position]
        for index, operation in enumerate(trace.operations):
            args = self._operation_args(position, index, operation)
            thread = Lane(None, operation.thread)
            name = f"call {operation.kind}" + (" (captured)" if operation.graph is not None else "")
            name += " (failed)" if operation.failed else ""
            ran = operation.graph is None and not operation.failed and trace.timed
            # The event of the run has all fields; that of the call only identifies the operation.
            brief = {key: args[key] for key in ("communicator", "sequence", "number")}
            yield (
                thread,
                _Span(name, "call", operation.called, operation.returned, brief if ran else args),
            )
            if ran:
                lane = lanes.of_operation(operation)
                span = self._ran(operation, operation.kind, args)
                span.more = self._flows.get((position, index), {})
                yield lane, span
        for launch in trace.launches:
            args = {"record": "launch", **_fields(launch)}
            name = f"graph {launch.graph}"
            yield (
                Lane(None, launch.thread),
                _Span(f"launch {name}", "call", launch.called, launch.returned, args),
            )
            if trace.timed:
                yield lanes.of_launch(launch), self._ran(launch, name, args)
        for run in trace.runs:
            args = {"record": "run", **_fields(run)}
            yield lanes.of_operation(run), self._ran(run, run.kind, args)
        for wait in trace.waits:
            args = {"record": "wait", **_fields(wait)}
            name = f"wait for {wait.what.replace('_', ' ')}"
            yield lanes.of_wait(wait), _Span(name, "wait", wait.began, wait.ended, args)
        for one in trace.ranges:
            args = {"record": "range", **_fields(one)}
            category = "compute" if one.compute else "range"
            yield lanes.of_range(one), _Span(one.name, category, one.began, one.ended, args)

    def _ran(self, one: Operation | GraphLaunch, name: str, args: Event) -> _Span:
        category = args["record"]
        if one.began is None:
            return _Span(f"{name} (not started)", category, one.called, None, args, instant=True)
        return _Span(name, category, one.began, one.ended, args)

    def _operation_args(self, position: int, index: int, operation: Operation) -> Event:
        args: Event = {"record": "operation", **_fields(operation)}
        communicator = self._merged.traces[position].communicator_of(operation)
        if communicator is not None:
            args["name"] = communicator.name
            args["rank"] = communicator.rank
            args["nranks"] = nranks = communicator.nranks
            args["bytes"] = total(operation.kind, nranks, operation.count, operation.dtype)
            if (found := self._bandwidths[position][index]) is not None:
                args |= {k: v for k, v in found._asdict().items() if v is not None}
        waited = self._merged.waited.get((position, index))
        if waited is not None:
            args["waited_for"] = waited.rank
            args["waited_us"] = waited.nanoseconds / 1000
        return args


def _set_fields(one: Operation | GraphLaunch | Wait | Range) -> dict[str, Any]:
    return {k: value for k, value in vars(one).items() if value != _UNSET.get(k, MISSING)}


def _fields(one: Operation | GraphLaunch | Wait | Range) -> Event:
    """All fields for a viewer; addresses are hexadecimal text, because viewers parse numbers as
    doubles.
    """
    args = {
        name: value._asdict() if isinstance(value, KernelTimes | ProxyWaits) else value
        for name, value in _set_fields(one).items()
    }
    for name in _HEX:
        if isinstance(args.get(name), int):
            args[name] = f"0x{args[name]:x}"
    return args


def _metadata(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}
