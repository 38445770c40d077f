"""The table, the JSON file and the plot of the comparison on CPUs."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import platform
import shlex
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.host_rows import Row

__all__ = ["Result", "combine", "heading", "line", "summary", "write"]

_OURS = "hostnccl"
_COLUMNS = ("hostnccl", "numpy", "torch", "mpich", "gloo", "copy")
_COLORS = {
    "hostnccl": "C0",
    "numpy": "C3",
    "torch": "C4",
    "mpich": "C2",
    "gloo": "C1",
    "copy": "0.6",
}


@dataclass(frozen=True)
class Result:
    """A row's times in seconds by library; "copy" is one memcpy of the row's bytes.

    Attributes:
        medians, lowest: of the samples.
    """

    row: Row
    medians: dict[str, float]
    lowest: dict[str, float]

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
        {name: min(r.lowest[name] for r in results) for name in names},
    )


def heading(nranks: int, versions: dict[str, str]) -> str:
    """What stands above the table of a number of ranks."""
    known = ", ".join(f"{name} ({version})" for name, version in versions.items())
    columns = "".join(f"{name + ' us':>13}" for name in _COLUMNS)
    return (
        f"\n{nranks} ranks on {_machine()}: {known}\n"
        f"{'operation':<15}{'dtype':<10}{'bytes':>11}{columns}{'/mpich':>9}{'/gloo':>9}"
    )


def line(result: Result) -> str:
    """A row of the table: microseconds, and how many times faster than the others."""
    row = result.row
    cells = "".join(f"{_microseconds(result.medians.get(name)):>13}" for name in _COLUMNS)
    ratios = "".join(f"{_ratio(result.times(name)):>9}" for name in ("mpich", "gloo"))
    return f"{row.operation:<15}{row.dtype:<10}{row.nbytes:>11}{cells}{ratios}"


def summary(results: list[Result]) -> str:
    """By how much hostnccl is faster than the others, and where it is not: with addresses, and with
    arrays.
    """
    lines = []
    for ours, library in itertools.product((_OURS, "numpy", "torch"), ("mpich", "gloo")):
        ratios = {r.row: ratio for r in results if (ratio := r.times(library, ours)) is not None}
        if not ratios:
            continue
        mean = math.exp(math.fsum(map(math.log, ratios.values())) / len(ratios))
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


def write(folder: Path, results: list[Result]) -> None:
    """Write the JSON file, and the plot where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "machine": _machine(),
        "system": platform.platform(),
        "rows": [
            {**asdict(r.row), "median_seconds": r.medians, "lowest_seconds": r.lowest}
            for r in results
        ],
    }
    path = folder / "host.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {path}")
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        print("note: no plot, matplotlib is not installed")
        return
    for nranks in sorted({r.row.nranks for r in results}):
        path = folder / f"host-{nranks}ranks.png"
        _plot(path, [r for r in results if r.row.nranks == nranks])
        print(f"wrote {path}")


def _plot(path: Path, results: list[Result]) -> None:
    """Time against size, a panel for each operation, a line for each library; the first dtype."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    dtype = results[0].row.dtype
    results = [r for r in results if r.row.dtype == dtype]
    operations = list(dict.fromkeys(r.row.operation for r in results))
    columns = min(3, len(operations))
    rows = math.ceil(len(operations) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    for panel in axes.flat[len(operations) :]:
        panel.set_visible(False)
    for panel, operation in zip(axes.flat, operations, strict=False):
        of_panel = [r for r in results if r.row.operation == operation]
        for library in _COLUMNS:
            points = [
                (r.row.nbytes, r.medians[library] * 1e6) for r in of_panel if library in r.medians
            ]
            if points:
                style = ":" if library == "copy" else "o-"
                panel.plot(
                    *zip(*points, strict=True),
                    style,
                    color=_COLORS[library],
                    markersize=3,
                    label=library,
                )
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(operation, fontsize=10)
        panel.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=8)
    figure.supxlabel("bytes")
    figure.supylabel("microseconds, median")
    figure.suptitle(f"{results[0].row.nranks} ranks, {dtype}, {_machine()}", fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _machine() -> str:
    model = platform.machine()
    for entry in Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            model = entry.partition(":")[2].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs"


def _microseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1e6
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
