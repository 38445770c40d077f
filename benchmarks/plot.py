"""The plot: time against size, a panel for each collective, a line for each library."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from benchmarks.results import Row, Timing

__all__ = ["write_plot"]

_TICKS = {4: "4 B", 2**8: "256 B", 2**14: "16 KB", 2**20: "1 MB", 2**26: "64 MB"}


def write_plot(path: Path, rows: list[Row], title: str) -> None:
    """Draw rows into a PNG file.

    Args:
        path: the file.
        rows: of any collectives, at least one.
        title: stands above the panels.
    """
    collectives = list(dict.fromkeys(row.collective for row in rows))
    libraries = list(dict.fromkeys(timing.library for row in rows for timing in row.timings))
    least, most = min(row.nbytes for row in rows), max(row.nbytes for row in rows)
    ticks = {nbytes: text for nbytes, text in _TICKS.items() if least <= nbytes <= most}
    columns = min(3, len(collectives))
    lines = math.ceil(len(collectives) / columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(4.2 * columns, 3.1 * lines + 0.6),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, collective in zip(axes.flat, collectives, strict=False):
        points: dict[str, list[tuple[int, Timing]]] = {}
        for row in rows:
            for timing in row.timings:
                if row.collective == collective:
                    points.setdefault(timing.library, []).append((row.nbytes, timing))
        for library, timings in points.items():
            sizes = [nbytes for nbytes, _ in timings]
            color = f"C{libraries.index(library)}"
            medians = [timing.seconds * 1e6 for _, timing in timings]
            panel.plot(sizes, medians, marker="o", markersize=3, color=color, label=library)
            fastest = [min(timing.samples) * 1e6 for _, timing in timings]
            slowest = [max(timing.samples) * 1e6 for _, timing in timings]
            panel.fill_between(sizes, fastest, slowest, color=color, alpha=0.2, linewidth=0)
        panel.set_title(collective, fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(ticks), list(ticks.values()))
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
    for panel in axes.flat[len(collectives) :]:
        panel.set_visible(False)
    axes.flat[0].legend(fontsize=8)
    figure.supxlabel("bytes", fontsize=10)
    figure.supylabel("microseconds: median of the samples, all of them shaded", fontsize=10)
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
