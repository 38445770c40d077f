"""A plot of a comparison (requires matplotlib): the times of each operation over both backends."""

from __future__ import annotations

import math
from pathlib import Path

from pynccl.tools.compare.comparison import Comparison
from pynccl.tools.figures import new_figure
from pynccl.tools.text import time_text

__all__ = ["draw"]

_COLORS = ("C1", "C0")  # as in benchmarks: pynccl's is blue
_HEIGHT = 0.38  # of a bar


def draw(path: Path, found: Comparison) -> None:
    """Draw two bars for each operation into an image file, and the times of the script as title.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib does not support the format.
        OSError: the file cannot be written.
    """
    figure = new_figure(8, 0.5 * len(found.rows) + 1.6)
    axes = figure.add_subplot()
    for i, (backend, color) in enumerate(zip(found.backends, _COLORS, strict=True)):
        rows = [(at, row.seconds[i]) for at, row in enumerate(found.rows)]
        rows = [(at, seconds) for at, seconds in rows if not math.isnan(seconds)]
        places = [at + (i - 0.5) * _HEIGHT for at, _ in rows]
        times = [seconds * 1e6 for _, seconds in rows]
        bars = axes.barh(places, times, height=_HEIGHT, color=color, label=backend)
        labels = [time_text(round(seconds * 1e9)) for _, seconds in rows]
        axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(found.rows)), [f"{row.operation}, {row.calls}" for row in found.rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("microseconds of a call (the number of calls follows its name)")
    axes.legend(fontsize=8)
    totals = ", ".join(
        f"{seconds:.3g} s over {backend}"
        for backend, seconds in zip(found.backends, found.seconds, strict=True)
    )
    axes.set_title(f"{found.ranks} ranks, the script: {totals}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
