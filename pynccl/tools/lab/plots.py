"""Plots (require matplotlib): exposed time against size, and the lanes of one row."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pynccl.tools.figures import new_figure
from pynccl.tools.lab.output import varying
from pynccl.tools.lab.row import Row, Span
from pynccl.tools.text import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_exposed", "draw_lanes", "panels", "save"]

_COMPUTE, _COMMUNICATION = "tab:blue", "tab:orange"


def panels(columns: int, lines: int = 1) -> tuple[Figure, list[Axes]]:
    """Create a figure with panels that share their axes.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawn = new_figure(2.8 + 4.2 * columns, 2.0 * lines + 0.5 if lines > 1 else 3.8)
    return drawn, list(
        drawn.subplots(lines, columns, sharex=True, sharey=lines == 1, squeeze=False).flat
    )


def save(drawn: Figure, path: Path) -> None:
    """Write the figure, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=100)


def draw_exposed(path: Path, rows: Sequence[Row]) -> None:
    """Draw exposed time against size into an image file, with a line per setting.

    The lines are medians of T_both - T_compute; half the interquartile range on either side is
    shaded. The dashed line is T_comm, which is exposed if nothing is hidden.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("rows: there are none")
    names = [name for name in varying(rows) if name != "nbytes"]
    lines: dict[str, list[Row]] = {}
    for row in rows:
        label = ", ".join(f"{name} {row.setting[name]}" for name in names) or "exposed"
        lines.setdefault(label, []).append(row)
    drawn = new_figure(6.4, 4.0)
    axes = drawn.subplots()
    for index, (label, of_line) in enumerate(lines.items()):
        ordered = sorted(of_line, key=lambda row: row.setting["nbytes"])
        sizes = [row.setting["nbytes"] for row in ordered]
        exposed = [row.exposed * 1e3 for row in ordered]
        spreads = [row.exposed_spread * 1e3 / 2 for row in ordered]
        color = f"C{index}"
        axes.plot(sizes, exposed, marker="o", markersize=4, color=color, label=label)
        axes.fill_between(
            sizes,
            [value - spread for value, spread in zip(exposed, spreads, strict=True)],
            [value + spread for value, spread in zip(exposed, spreads, strict=True)],
            color=color,
            alpha=0.2,
            linewidth=0,
        )
        alone = [row.communication.median * 1e3 for row in ordered]
        axes.plot(sizes, alone, linestyle="--", linewidth=1, color=color, alpha=0.6)
    sizes = sorted({row.setting["nbytes"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [size_text(size) for size in sizes], fontsize=8)
    axes.set_yscale("symlog", linthresh=0.1)  # an exposed time can be 0, or negative due to noise
    axes.set_xlabel("size")
    axes.set_ylabel("milliseconds: exposed; dashed, T_comm")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(drawn, path)


def draw_lanes(path: Path, rows: Sequence[Row]) -> None:
    """Draw compute and communication of each row, alone and in one step, into an image file.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("rows: there are none")
    names = varying(rows)
    drawn, axes = panels(1, len(rows))
    for row, panel in zip(rows, axes, strict=True):
        _draw_lanes_of(panel, row, ", ".join(f"{name}: {row.setting[name]}" for name in names))
    axes[-1].set_xlabel(
        "milliseconds, with waits; the line is T_both, dashed max(T_compute, T_comm)"
    )
    save(drawn, path)


def _draw_lanes_of(panel: Axes, row: Row, name: str) -> None:
    bars = [
        ("compute alone", Span(0.0, row.compute.median), _COMPUTE, 0.4),
        ("communication alone", Span(0.0, row.communication.median), _COMMUNICATION, 0.4),
        ("compute", row.spans["compute"], _COMPUTE, 1.0),
        ("communication", row.spans["communication"], _COMMUNICATION, 1.0),
    ]
    for index, (_, span, color, alpha) in enumerate(bars):
        width = (span.ended - span.began) * 1e3
        panel.barh(index, width, left=span.began * 1e3, color=color, alpha=alpha, height=0.7)
    panel.set_yticks(range(len(bars)), [name for name, *_ in bars], fontsize=8)
    panel.invert_yaxis()
    panel.axvline(row.both.median * 1e3, color="black", linewidth=0.8)
    panel.axvline(row.bound * 1e3, color="black", linewidth=0.8, linestyle="--")
    numbers = f"{row.hidden:.0%} hidden, {row.exposed * 1e3:.2f} ms exposed. {row.verdict}"
    text = textwrap.fill(f"{name}. {numbers}" if name else numbers, 90)
    panel.set_title(text, fontsize=8, loc="left")
