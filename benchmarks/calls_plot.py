"""The plot of benchmarks.calls: a bar for each call, a panel for each operation."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

__all__ = ["write_plot"]


def write_plot(path: Path, rows: list[tuple[str, str, float]], title: str) -> None:
    """Draw bars into a PNG file.

    Args:
        path: the file.
        rows: name, operation and seconds of each call.
        title: stands above the panels.
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
        bars = panel.barh(*zip(*chosen, strict=True), color=colors)
        panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        panel.set_xscale("log")
        panel.margins(x=0.15)
        panel.set_title(operation, fontsize=10)
    figure.supxlabel("nanoseconds of one call, the least of the samples", fontsize=10)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)
