"""The plots: time against size for operations, bars for calls."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["bars", "lines"]

_TICKS = {4: "4 B", 2**8: "256 B", 2**14: "16 KB", 2**20: "1 MB", 2**26: "64 MB"}
_FLOOR = "copy"  # the dotted line


def lines(path: Path, figures: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draw time against size, a panel for each operation and a line for each library.

    Args:
        path: the PNG file.
        figures: at least one figure; the range of its samples is shaded.
        title: the title.
    """
    names = list(dict.fromkeys(figure["operation"] for figure in figures))
    libraries = list(dict.fromkeys(figure["library"] for figure in figures))
    sizes = [figure["bytes"] for figure in figures]
    ticks = {size: text for size, text in _TICKS.items() if min(sizes) <= size <= max(sizes)}
    columns = min(3, len(names))
    height = math.ceil(len(names) / columns)
    drawn, panels = plt.subplots(
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
            chosen = [
                one for one in figures if (one["operation"], one["library"]) == (name, library)
            ]
            x = [one["bytes"] for one in chosen]
            color, style = ("0.6", ":") if library == _FLOOR else (f"C{number}", "o-")
            medians = [one["seconds"] * 1e6 for one in chosen]
            panel.plot(x, medians, style, markersize=3, color=color, label=library)
            samples = [one["samples"] for one in chosen]
            fastest, slowest = ([1e6 * end(each) for each in samples] for end in (min, max))
            panel.fill_between(x, fastest, slowest, color=color, alpha=0.2, linewidth=0)
        panel.set_title(name, fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(ticks), list(ticks.values()))
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    panels.flat[0].legend(fontsize=8)
    drawn.supxlabel("bytes", fontsize=10)
    drawn.supylabel("microseconds: the median, samples shaded", fontsize=10)
    _save(drawn, path, title)


def bars(path: Path, rows: Sequence[tuple[str, str, float]], title: str) -> None:
    """Draw a bar for each call and a panel for each operation.

    Args:
        path: the PNG file.
        rows: name, operation and seconds of each call.
        title: the title.
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
    _save(figure, path, title)


def _save(figure: Figure, path: Path, title: str) -> None:
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"wrote {os.path.relpath(path)}", flush=True)
