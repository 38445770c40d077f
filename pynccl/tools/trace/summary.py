"""The summary of a trace: a table of operations by kind and size, and one of the ranks."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.tools.text import columns, size_text, time_text
from pynccl.tools.trace.bandwidth import Bandwidth, operation_bandwidths, operation_bytes
from pynccl.tools.trace.exposure import RANGES, WAITS, Exposed, exposed
from pynccl.tools.trace.lanes import Lanes
from pynccl.tools.trace.merge import Merged
from pynccl.tools.trace.model import ProcessTrace

__all__ = ["Rank", "Row", "Summary", "clock_notes", "summarise"]

_DEFINITIONS = {
    RANGES: "exposed: the time on its stream in which no range of compute was open",
    WAITS: "exposed: the time in which threads and streams waited for it "
    "(there are no ranges of compute)",
}


@dataclass
class Row:
    """The operations of one kind and size on all ranks. Times are in nanoseconds.

    Attributes:
        kind: kind of the operation, or "graph 1".
        bytes: as nccl-tests counts them; for a graph, of all its operations together.
        calls: number of calls that have ended; in a recording, which has no times, of all calls.
        total: sum of their times; a group counts once.
        median: median of their times; None without times.
        minimum: shortest time.
        maximum: longest time.
        busbw: median bus bandwidth in GB/s; None if the kind has none.
        exposed: sum of their exposed times; a group counts once.
        waited_for: how long they waited for each rank, by its label.
    """

    kind: str
    bytes: int
    calls: int = 0
    total: int = 0
    median: int | None = None
    minimum: int | None = None
    maximum: int | None = None
    busbw: float | None = None
    exposed: int = 0
    waited_for: Counter[str] = field(default_factory=Counter)


@dataclass
class Rank:
    """The totals of a process, in nanoseconds.

    Attributes:
        label: such as "rank 2".
        duration: of the trace.
        calls: number of operations, including captured and failed ones.
        communication: time in which any operation ran.
        exposed: time in which any operation was exposed.
        definition: the definition of exposed time that was used.
        compute: time in which a compute range was open.
        waited: sum of its operations' waits for other ranks.
        waited_for: sum of other ranks' waits for it.
        captured: number of captured operations.
        failed: number of failed operations.
        unfinished: descriptions of the operations that have not ended.
        dropped: number of operations beyond the limit of the trace.
    """

    label: str
    duration: int
    calls: int
    communication: int
    exposed: int
    definition: str
    compute: int
    waited: int = 0
    waited_for: int = 0
    captured: int = 0
    failed: int = 0
    unfinished: list[str] = field(default_factory=list)
    dropped: int = 0


@dataclass
class Summary:
    """The tables of merged traces.

    Attributes:
        merged: the traces.
        rows: operations by kind and size.
        ranks: the totals of each process.
    """

    merged: Merged
    rows: list[Row]
    ranks: list[Rank]

    def text(self) -> str:
        """Format the tables as ``pynccl trace show`` prints them.

        Returns:
            Lines of text.
        """
        lines = ["no operation has ended"]
        if self.rows:
            lines = [columns(self.rows, _ROW_COLUMNS.items(), left=(0, 10))]
        lines += ["", columns(self.ranks, _RANK_COLUMNS.items()), ""]
        lines += [_DEFINITIONS[kind] for kind in sorted({r.definition for r in self.ranks})]
        return "\n".join(lines + self._notes())

    def _notes(self) -> list[str]:
        notes = clock_notes(self.merged)
        for rank in self.ranks:
            more = len(rank.unfinished) - 3
            named = ", ".join(rank.unfinished[:3]) + (f" and {more} more" if more > 0 else "")
            notes += [f"{rank.label}: not ended: {named}"] if rank.unfinished else []
            notes += [f"{rank.label}: {rank.failed} calls failed"] if rank.failed else []
            notes += [f"{rank.label}: {rank.captured} calls were captured"] if rank.captured else []
            if rank.dropped:
                notes.append(f"{rank.label}: {rank.dropped} later operations were not recorded")
        return notes + self.merged.different


def summarise(merged: Merged) -> Summary:
    """Compute the tables of merged traces.

    Args:
        merged: the traces.

    Returns:
        The tables.
    """
    found = [exposed(trace) for trace in merged.traces]
    ranks = [
        _rank(merged.label(i), trace, one)
        for i, (trace, one) in enumerate(zip(merged.traces, found, strict=True))
    ]
    for (position, _), waited in merged.waited.items():
        ranks[position].waited += waited.nanoseconds
        ranks[waited.trace].waited_for += waited.nanoseconds
    return Summary(merged, _rows(merged, found), ranks)


def _rank(label: str, trace: ProcessTrace, one: Exposed) -> Rank:
    rank = Rank(
        label,
        trace.ended - trace.began,
        len(trace.operations),
        one.communication,
        one.total,
        one.definition,
        one.compute,
        dropped=trace.dropped,
    )
    for operation in trace.operations:
        if operation.failed:
            rank.failed += 1
        elif operation.graph is not None:
            rank.captured += 1
        elif operation.ended is None and trace.timed:
            number = "" if operation.number is None else f" #{operation.number}"
            rank.unfinished.append(f"{operation.kind}{number} of {operation.communicator}")
    return rank


class _Sample(NamedTuple):
    """An operation that has ended; those of a group have equal times."""

    time: int
    exposed: int
    group: object = None
    bandwidth: Bandwidth | None = None


def _rows(merged: Merged, found: Sequence[Exposed]) -> list[Row]:
    rows: dict[tuple[str, int], Row] = {}
    samples: dict[tuple[str, int], list[_Sample]] = defaultdict(list)

    def at(kind: str, nbytes: int) -> Row:
        return rows.setdefault((kind, nbytes), Row(kind, nbytes))

    for position, (trace, open_) in enumerate(zip(merged.traces, found, strict=True)):
        lanes = Lanes(trace)
        speeds = operation_bandwidths(trace) + operation_bandwidths(trace, trace.runs)
        exposed_ = open_.operations + open_.runs
        graphs: dict[int, int] = defaultdict(int)
        for index, operation in enumerate([*trace.operations, *trace.runs]):
            nbytes, is_run = operation_bytes(trace, operation), index >= len(trace.operations)
            if operation.graph is not None and not is_run:
                graphs[operation.graph] += nbytes
            if not trace.timed and operation.graph is None and not operation.failed:
                at(operation.kind, nbytes).calls += 1
            hidden = exposed_[index]
            if hidden is None or operation.began is None or operation.ended is None:
                continue
            row = at(operation.kind, nbytes)
            group = None
            if operation.group is not None:
                launch = operation.called if is_run else None
                group = position, operation.group, lanes.of_operation(operation), launch
            time = operation.ended - operation.began
            samples[row.kind, nbytes].append(_Sample(time, hidden, group, speeds[index]))
            if not is_run and (waited := merged.waited.get((position, index))) is not None:
                row.waited_for[merged.label(waited.trace)] += waited.nanoseconds
        for graph, hidden in zip(trace.launches, open_.launches, strict=True):
            if hidden is not None and graph.began is not None and graph.ended is not None:
                row = at(f"graph {graph.graph}", graphs[graph.graph])
                samples[row.kind, row.bytes].append(_Sample(graph.ended - graph.began, hidden))
    for key, own in samples.items():
        _fill(rows[key], own)
    return [row for _, row in sorted(rows.items())]


def _fill(row: Row, samples: Sequence[_Sample]) -> None:
    times = [one.time for one in samples]
    row.calls += len(times)
    row.median = round(statistics.median(times))
    row.minimum, row.maximum = min(times), max(times)
    speeds = [one.bandwidth.busbw for one in samples if one.bandwidth is not None]
    row.busbw = statistics.median(speeds) if speeds else None
    groups = {one.group: one for one in reversed(samples) if one.group is not None}
    for one in [*groups.values(), *(one for one in samples if one.group is None)]:
        row.total += one.time
        row.exposed += one.exposed


# --- text


def _busbw(row: Row) -> str:
    if row.busbw is None:
        return "-"
    return f"{row.busbw:.3g}" if row.busbw < 100 else f"{row.busbw:.0f}"


def _waited_for(row: Row) -> str:
    others = [f"{label} {time_text(waited)}" for label, waited in row.waited_for.most_common(2)]
    more = len(row.waited_for) - len(others)
    return ", ".join(others) + (f", {more} more" if more else "") or "-"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


_ROW_COLUMNS: dict[str, Callable[[Row], str]] = {
    "operation": lambda row: row.kind,
    "size": lambda row: size_text(row.bytes),
    "calls": lambda row: str(row.calls),
    "total": lambda row: time_text(row.total),
    "median": lambda row: time_text(row.median),
    "min": lambda row: time_text(row.minimum),
    "max": lambda row: time_text(row.maximum),
    "busbw GB/s": _busbw,
    "exposed": lambda row: time_text(row.exposed),
    "exposed %": lambda row: _percent(row.exposed, row.total),
    "waits for": _waited_for,
}
_RANK_COLUMNS: dict[str, Callable[[Rank], str]] = {
    "process": lambda rank: rank.label,
    "trace": lambda rank: time_text(rank.duration),
    "calls": lambda rank: str(rank.calls),
    "communication": lambda rank: time_text(rank.communication),
    "exposed": lambda rank: time_text(rank.exposed),
    "exposed %": lambda rank: _percent(rank.exposed, rank.communication),
    "compute": lambda rank: time_text(rank.compute) if rank.definition == RANGES else "-",
    "waited": lambda rank: time_text(rank.waited),
    "others waited": lambda rank: time_text(rank.waited_for),
}


def clock_notes(merged: Merged) -> list[str]:
    """One line for each trace whose clock differs from that of the first one.

    Args:
        merged: the traces.

    Returns:
        The lines; empty if all traces share one clock.
    """
    return [
        f"{merged.label(trace)}: its clock is {clock.offset / 1e6:+.6f} ms, from "
        + (
            "the wall clocks: none of its collectives match"
            if clock.method == "epoch"
            else f"{clock.operations} matched collectives"
        )
        for trace, clock in enumerate(merged.clocks)
        if clock.method != "same"
    ]
