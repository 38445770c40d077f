"""The table of a replay: its timings beside the recorded ones."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pynccl.tools.replay.rank import Timing
from pynccl.tools.text import table
from pynccl.tools.trace.bandwidth import bandwidth
from pynccl.tools.trace.shape import total

__all__ = ["Row", "rows_of", "write_table"]


@dataclass(frozen=True)
class Row:
    """The operations of one kind and size.

    Attributes:
        kind: kind of the operations.
        nranks: size of their communicators.
        nbytes: the recorded size, that of the larger of input and output.
        replayed_nbytes: the replayed size.
        calls: number of calls on all ranks.
        recorded: the median on the recorded device, in seconds; None if it was not timed.
        replayed: the median of the replay, in seconds.
        ratio: the ratio of the two.
        busbw: the bus bandwidth of the replay in GB/s; None if the kind has none.
    """

    kind: str
    nranks: int
    nbytes: int
    replayed_nbytes: int
    calls: int
    recorded: float | None
    replayed: float
    ratio: float | None
    busbw: float | None


def rows_of(timings: Iterable[Timing]) -> list[Row]:
    """The rows, ordered by kind and size."""
    groups: dict[tuple[str, int, int, int], list[Timing]] = defaultdict(list)
    for one in timings:
        counts = (one.recorded_count, one.replayed_count)
        sizes = [total(one.kind, one.nranks, count, one.dtype) for count in counts]
        groups[one.kind, sizes[0], sizes[1], one.nranks].append(one)
    rows = []
    for (kind, nbytes, replayed_nbytes, nranks), members in sorted(groups.items()):
        times = [one.recorded for one in members if one.recorded is not None]
        recorded = statistics.median(times) / 1e9 if times else None
        replayed = statistics.median(one.replayed for one in members) / 1e9
        rows.append(
            Row(
                kind,
                nranks,
                nbytes,
                replayed_nbytes,
                len(members),
                recorded,
                replayed,
                replayed / recorded if recorded else None,
                _bus_bandwidth(kind, replayed_nbytes, replayed, nranks),
            )
        )
    return rows


def _bus_bandwidth(kind: str, nbytes: int, seconds: float, nranks: int) -> float | None:
    if not nbytes or not seconds:
        return None
    return bandwidth(kind, nbytes, seconds, nranks).busbw


_HEADER = (
    "kind",
    "ranks",
    "bytes",
    "replayed",
    "calls",
    "recorded us",
    "replayed us",
    "ratio",
    "busbw GB/s",
)


def write_table(rows: Iterable[Row]) -> str:
    """Format the rows as a table."""
    lines = [
        (
            row.kind,
            str(row.nranks),
            str(row.nbytes),
            str(row.replayed_nbytes),
            str(row.calls),
            "-" if row.recorded is None else f"{row.recorded * 1e6:.1f}",
            f"{row.replayed * 1e6:.1f}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            "-" if row.busbw is None else f"{row.busbw:.3f}",
        )
        for row in rows
    ]
    return table(_HEADER, lines)
