"""Plots of the lanes of rows (require matplotlib)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pynccl.tools.lab.row import Row, hidden_text, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_matplotlib", "draw_lanes"]

_COMPUTE, _COMMUNICATION = "tab:blue", "tab:orange"


def check_matplotlib() -> None:
    """Check that plots can be drawn, before a measurement that ends with one.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"a plot needs matplotlib (pip install 'rawnccl[plot]'): {error}"
        ) from error


def _figure(width: float, height: float) -> Figure:
    """Create a figure of this many inches that is drawn without a display."""
    check_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def draw_lanes(path: Path, rows: Sequence[Row]) -> None:
    """Draw the lanes of compute and communication in the step of each row into an image file.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("rows: expected at least one row")
    names = varying(rows)
    numbered = len(rows) > 1
    verdicts = [f"{number}. {row.verdict}" for number, row in enumerate(rows, 1)]
    caption = [
        "Pale: as much of a lane as it is longer than alone, because it waits or is slowed. Red: "
        "the exposed time.",
        *(verdicts if numbered else [str(rows[0].verdict)]),
    ]
    drawn = _figure(7.0, 1.25 * len(rows) + 0.9 + 0.15 * len(_wrap(caption)))
    axes = drawn.subplots(len(rows), sharex=True, squeeze=False).flat
    for number, (row, panel) in enumerate(zip(rows, axes, strict=True), 1):
        _draw_lanes_of(panel, row)
        values = [str(row.setting[name]) for name in names]
        if len(names) > 1:
            values = [" ".join(pair) for pair in zip(names, values, strict=True)]
        setting = ", ".join(values)
        panel.set_title(f"{number}. {setting}" if numbered else setting, fontsize=9, loc="left")
    axes[-1].set_xlabel("milliseconds")
    _set_caption(drawn, caption)
    _save(drawn, path)


def _draw_lanes_of(panel: Axes, row: Row) -> None:
    lanes = [
        ("compute", row.compute.median, _COMPUTE),
        ("communication", row.communication.median, _COMMUNICATION),
    ]
    for index, (name, alone, color) in enumerate(lanes):
        began, ended = (seconds * 1e3 for seconds in row.spans[name])
        working = max(began, ended - alone * 1e3)
        panel.barh(index, working - began, left=began, color=color, alpha=0.25, height=0.7)
        panel.barh(index, ended - working, left=working, color=color, height=0.7)
    panel.set_yticks(range(len(lanes)), [name for name, *_ in lanes], fontsize=8)
    panel.invert_yaxis()
    is_certain = row.verdict.kind != "not certain"
    end = max(row.both.median, *(span.ended for span in row.spans.values())) * 1e3
    if is_certain:
        panel.axvspan(end - row.exposed * 1e3, end, color="tab:red", alpha=0.3, linewidth=0)
    panel.set_xlim(left=0)
    text = f"{hidden_text(row)} hidden" + (
        f", {row.exposed * 1e3:.3g} ms exposed" if is_certain else ": not certain"
    )
    panel.set_title(text, fontsize=9, loc="right")


def _wrap(paragraphs: Sequence[str]) -> list[str]:
    return [line for text in paragraphs for line in textwrap.wrap(text, 115)]


def _set_caption(drawn: Figure, paragraphs: Sequence[str]) -> None:
    text = "\n".join(_wrap(paragraphs))
    drawn.supxlabel(text, x=0.01, ha="left", fontsize=7)
