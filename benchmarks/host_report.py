"""The table, the JSON file and the plot of the comparison on CPUs."""

from __future__ import annotations

import itertools
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.host_rows import Row
from benchmarks.machine import cpu

__all__ = ["Result", "combine", "heading", "line", "summary", "write"]

_OURS = "hostnccl"
_COLUMNS = ("hostnccl", "numpy", "torch", "mpich", "gloo", "copy")


@dataclass(frozen=True)
class Result:
    """A row's times in seconds by library; "copy" is one memcpy of the row's bytes.

    Attributes:
        medians, deciles: of the samples; the decile is the ninth.
    """

    row: Row
    medians: dict[str, float]
    deciles: dict[str, float]

    def times(self, library: str, ours: str = _OURS) -> float | None:
        """How many times our time a library takes; None where one was not measured."""
        if ours not in self.medians or library not in self.medians:
            return None
        return self.medians[library] / self.medians[ours]


def combine(results: list[Result]) -> Result:
    """One row, measured several times."""
    names = results[0].medians
    return Result(
        results[0].row,
        {name: statistics.median(r.medians[name] for r in results) for name in names},
        {name: statistics.median(r.deciles[name] for r in results) for name in names},
    )


def heading(nranks: int, versions: dict[str, str]) -> str:
    """What stands above the table of a number of ranks."""
    known = ", ".join(f"{name} ({version})" for name, version in versions.items())
    columns = "".join(f"{name + ' us':>13}" for name in _COLUMNS)
    return (
        f"\n{nranks} ranks on {cpu()}: {known}\n"
        f"{'operation':<15}{'dtype':<10}{'bytes':>11}{columns}{'/mpich':>9}{'/gloo':>9}{'p90':>7}"
    )


def line(result: Result) -> str:
    """A row of the table: microseconds, how many times faster than the others, the spread."""
    row = result.row
    cells = "".join(f"{report.microseconds(result.medians.get(name)):>13}" for name in _COLUMNS)
    ratios = "".join(f"{_ratio(result.times(name)):>9}" for name in ("mpich", "gloo"))
    spread = result.deciles[_OURS] / result.medians[_OURS] if _OURS in result.medians else None
    return f"{row.operation:<15}{row.dtype:<10}{row.nbytes:>11}{cells}{ratios}{_ratio(spread):>7}"


def summary(results: list[Result]) -> str:
    """By how much hostnccl is faster than the others, and where it is not: with addresses, and with
    arrays.
    """
    lines = []
    for ours, library in itertools.product((_OURS, "numpy", "torch"), ("mpich", "gloo")):
        ratios = {r.row: ratio for r in results if (ratio := r.times(library, ours)) is not None}
        if not ratios:
            continue
        mean = statistics.geometric_mean(ratios.values())
        behind = [
            f"{row.operation} {row.dtype} {row.nbytes} ({ratio:.2f})"
            for row, ratio in ratios.items()
            if ratio < 1
        ]
        lines.append(
            f"{library}: {ours} is {mean:.1f} times as fast in the geometric mean of "
            f"{len(ratios)} rows; behind in {len(behind)}{': ' if behind else ''}"
            + ", ".join(behind)
        )
    return "\n".join(lines)


def write(folder: Path, results: list[Result], beside: int) -> None:
    """Write the JSON file, and the plots of the first dtype where matplotlib is installed.

    Args:
        folder: where to write them.
        results: of all rows.
        beside: the number of busy processes beside the ranks.
    """
    rows = [
        {**asdict(r.row), "median_seconds": r.medians, "p90_seconds": r.deciles} for r in results
    ]
    of_run = {"machine": cpu(), "system": platform.platform(), "beside": beside}
    report.write_json(folder / "host.json", rows, **of_run)
    try:
        from benchmarks.plot import Point, lines
    except ImportError:
        print("note: no plot, matplotlib is not installed")
        return
    dtype = results[0].row.dtype
    for nranks in sorted({r.row.nranks for r in results}):
        points = [
            Point(r.row.operation, library, r.row.nbytes, r.medians[library])
            for r in results
            for library in _COLUMNS
            if r.row.nranks == nranks and r.row.dtype == dtype and library in r.medians
        ]
        busy = f", beside {beside} busy processes" if beside else ""
        title = f"{nranks} ranks, {dtype}, {cpu()}{busy}"
        lines(folder / f"host-{nranks}ranks.png", points, title)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
