"""The plots: time against size for collectives, bars for calls."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["Point", "bars", "collectives", "lines"]

_TICKS = {4: "4 B", 2**8: "256 B", 2**14: "16 KB", 2**20: "1 MB", 2**26: "64 MB"}
_FLOORS = ("copy", "one copy")  # are dotted


class Point(NamedTuple):
    """A time of a library.

    Attributes:
        panel: the operation.
        series: the library.
        nbytes: the size.
        seconds: the median of the samples.
        samples: are shaded from the least to the greatest; may be empty.
    """

    panel: str
    series: str
    nbytes: int
    seconds: float
    samples: Sequence[float] = ()


def collectives(path: Path, figures: Iterable[Mapping[str, Any]], title: str) -> None:
    """Draw what Row.figures() gives."""
    keys = ("collective", "library", "bytes", "seconds", "samples")
    lines(path, [Point(*(figure[key] for key in keys)) for figure in figures], title)


def lines(
    path: Path, points: Sequence[Point], title: str, metadata: Mapping[str, str] | None = None
) -> None:
    """Draw time against size, a panel for each operation and a line for each library.

    Args:
        path: the PNG file.
        points: at least one.
        title: stands above the panels.
        metadata: of the file.
    """
    names = list(dict.fromkeys(point.panel for point in points))
    libraries = list(dict.fromkeys(point.series for point in points))
    sizes = [point.nbytes for point in points]
    ticks = {size: text for size, text in _TICKS.items() if min(sizes) <= size <= max(sizes)}
    columns = min(3, len(names))
    height = math.ceil(len(names) / columns)
    figure, panels = plt.subplots(
        height,
        columns,
        figsize=(4.2 * columns, 3.1 * height + 0.6),
        squeeze=False,
        layout="constrained",
    )
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(panels.flat, names, strict=False):
        for number, library in enumerate(libraries):
            chosen = [one for one in points if (one.panel, one.series) == (name, library)]
            x = [one.nbytes for one in chosen]
            color, style = ("0.6", ":") if library in _FLOORS else (f"C{number}", "o-")
            medians = [one.seconds * 1e6 for one in chosen]
            panel.plot(x, medians, style, markersize=3, color=color, label=library)
            samples = [[one * 1e6 for one in point.samples or [point.seconds]] for point in chosen]
            fastest, slowest = list(map(min, samples)), list(map(max, samples))
            panel.fill_between(x, fastest, slowest, color=color, alpha=0.2, linewidth=0)
        panel.set_title(name, fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(ticks), list(ticks.values()))
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    panels.flat[0].legend(fontsize=8)
    figure.supxlabel("bytes", fontsize=10)
    shaded = ": the median, samples shaded" if any(point.samples for point in points) else ""
    figure.supylabel(f"microseconds{shaded}", fontsize=10)
    _save(figure, path, title, metadata)


def bars(
    path: Path,
    rows: Sequence[tuple[str, str, float]],
    title: str,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Draw a bar for each call and a panel for each operation.

    Args:
        path: the PNG file.
        rows: name, operation and seconds of each call.
        title: stands above the panels.
        metadata: of the file.
    """
    operations = list(dict.fromkeys(operation for _, operation, _ in rows))
    figure, panels = plt.subplots(
        len(operations),
        1,
        figsize=(9, 0.4 * len(rows) + 1.8),
        height_ratios=[sum(o == operation for _, o, _ in rows) for operation in operations],
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, operation in zip(panels.flat, operations, strict=True):
        chosen = [(name, seconds * 1e9) for name, o, seconds in rows if o == operation][::-1]
        colors = ["C0" if name.startswith("pynccl") else "C1" for name, _ in chosen]
        drawn = panel.barh(*zip(*chosen, strict=True), color=colors)
        panel.bar_label(drawn, fmt="%.0f", padding=3, fontsize=8)
        panel.set_xscale("log")
        panel.margins(x=0.15)
        panel.set_title(operation, fontsize=10)
    figure.supxlabel("nanoseconds of one call", fontsize=10)
    _save(figure, path, title, metadata)


def _save(figure: Figure, path: Path, title: str, metadata: Mapping[str, str] | None) -> None:
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata=dict(metadata or {}))
    plt.close(figure)
    print(f"wrote {os.path.relpath(path)}", flush=True)
