"""A plot of a trace (requires matplotlib): ranks from top to bottom, streams as lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pynccl.tools.figures import new_figure
from pynccl.tools.trace.lanes import Interval, Lane, Lanes
from pynccl.tools.trace.merge import Merged
from pynccl.tools.trace.model import TraceError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]

# One colour per kind, the same in every plot; tab20 has a dark and a light one of each hue.
_KINDS = {
    "all_reduce": 0,
    "all_gather": 2,
    "reduce_scatter": 4,
    "broadcast": 6,
    "all_to_all": 8,
    "send": 16,
    "recv": 17,
    "reduce": 7,
    "gather": 3,
    "scatter": 5,
    "put_signal": 18,
    "wait_signal": 19,
    "signal": 19,
    "barrier": 10,
}
_OTHER = 12
_COMPUTE, _RANGE, _WAIT = "#d8d8d8", "#f3f3f3", "#555555"
_LANE_INCHES, _WIDTH_INCHES, _MOST_INCHES = 0.32, 12.0, 60.0
_DOTS = 120  # per inch
_HEIGHT = 0.8


def plot(
    merged: Merged, path: str, *, begin: float | None = None, end: float | None = None
) -> None:
    """Draw merged traces into an image file.

    Args:
        merged: one or more traces.
        path: the file; its suffix selects the format, such as ".png" or ".svg".
        begin: start of the plot, in seconds from the begin of the trace.
        end: end of the plot, in seconds from the begin of the trace.

    Raises:
        TraceError: there is nothing in this period, or the format is unknown.
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    first = min(merged.time(i, trace.began) for i, trace in enumerate(merged.traces))
    low = None if begin is None else first + round(begin * 1e9)
    high = None if end is None else first + round(end * 1e9)
    bars = [bar for i in range(len(merged.traces)) for bar in _bars(merged, i)]
    bars = [bar for bar in bars if bar.within(low, high)]
    if not bars:
        raise TraceError("there is nothing to plot in this period")
    rows = _rows(merged, bars)
    inches = min(1.6 + _LANE_INCHES * len(rows), _MOST_INCHES)
    figure = new_figure(_WIDTH_INCHES, inches)
    axes = figure.add_subplot()
    low = min(bar.began for bar in bars) if low is None else low
    high = max(bar.ended for bar in bars) if high is None else high
    _draw(axes, bars, rows, first, (high - low) / 1e6 / (_WIDTH_INCHES * _DOTS))
    _describe(axes, merged, rows)
    margin = 0 if begin is not None or end is not None else (high - low) / 200
    axes.set_xlim((low - margin - first) / 1e6, (high + margin - first) / 1e6)
    try:
        figure.savefig(path, dpi=_DOTS)
    except ValueError as error:  # a format that matplotlib does not support
        raise TraceError(f"{path}: {error}") from None


class _Bar:
    """An entry with a begin and an end on a lane."""

    def __init__(self, row: tuple[int, Lane], kind: str, name: str, interval: Interval) -> None:
        self.row = row
        self.kind = kind  # "operation", "compute", "range", "wait"
        self.name = name
        self.began, self.ended = interval

    def within(self, low: int | None, high: int | None) -> bool:
        return (low is None or self.ended >= low) and (high is None or self.began <= high)


def _bars(merged: Merged, position: int) -> list[_Bar]:
    trace = merged.traces[position]
    lanes = Lanes(trace)
    bars = []

    def add(one: Any, lane: Lane, kind: str, name: str) -> None:  # noqa: ANN401 - of any record
        interval = lanes.interval(one)
        if interval is not None:
            shifted = merged.time(position, interval[0]), merged.time(position, interval[1])
            bars.append(_Bar((position, lane), kind, name, shifted))

    for one in trace.ranges:
        add(one, lanes.of_range(one), "compute" if one.compute else "range", one.name)
    for operation in trace.operations:
        if operation.graph is None and not operation.failed:
            add(operation, lanes.of_operation(operation), "operation", operation.kind)
    for launch in trace.launches:
        add(launch, lanes.of_launch(launch), "operation", "graph")
    for run in trace.runs:
        add(run, lanes.of_operation(run), "operation", run.kind)
    for wait in trace.waits:
        add(wait, lanes.of_wait(wait), "wait", "wait")
    return bars


def _rows(merged: Merged, bars: Sequence[_Bar]) -> dict[tuple[int, Lane], int]:
    """The row of each lane: ranks from top to bottom, each with its threads, then its streams.

    A CPU thread's default stream is in the row of the thread, which runs it.
    """
    places = list(dict.fromkeys(bar.row for bar in sorted(bars, key=lambda bar: bar.began)))
    lanes = [Lanes(trace) for trace in merged.traces]
    places.sort(key=lambda row: lanes[row[0]].order(row[1]))
    rows: dict[tuple[int, Lane], int] = {}
    height = 0
    for position in range(len(merged.traces)):
        for place in [place for place in places if place[0] == position]:
            lane = place[1]
            thread = (position, Lane(None, lane.thread))
            if lane.blocks_thread and thread in rows:
                rows[place] = rows[thread]
            else:
                rows[place] = height
                height += 1
    return rows


def _colour(name: str) -> Any:  # noqa: ANN401 - a colour of matplotlib
    from matplotlib import colormaps

    return colormaps["tab20"](_KINDS.get(name, _OTHER))


def _draw(
    axes: Axes,
    bars: Sequence[_Bar],
    rows: dict[tuple[int, Lane], int],
    first: int,
    pixel: float,
) -> None:
    """Draw the bars and a legend; pixel is the width of a pixel in milliseconds."""
    from matplotlib.patches import Patch

    styles: dict[tuple[str, str], dict[str, Any]] = {}
    spans: dict[tuple[str, str, float, float], list[tuple[float, float]]] = {}
    together: dict[tuple[int, int, int], list[str]] = {}  # kinds in a group share the height
    for bar in bars:
        if bar.kind == "operation":
            kinds = together.setdefault((rows[bar.row], bar.began, bar.ended), [])
            kinds += [bar.name] if bar.name not in kinds else []
    for bar in bars:
        name = bar.name if bar.kind == "operation" else bar.kind
        bottom, height = rows[bar.row] - _HEIGHT / 2, _HEIGHT
        if bar.kind == "operation":
            kinds = together[rows[bar.row], bar.began, bar.ended]
            height /= len(kinds)
            bottom += kinds.index(name) * height
        began, ended = (bar.began - first) / 1e6, (bar.ended - first) / 1e6
        spans.setdefault((bar.kind, name, bottom, height), []).append((began, ended - began))
        styles.setdefault((bar.kind, name), _style(bar.kind, name))
    for (kind, name, bottom, height), times in spans.items():
        axes.broken_barh(_joined(times, pixel), (bottom, height), **styles[kind, name])
    order = {"compute": 0, "operation": 1, "wait": 2, "range": 3}
    shown = sorted(styles, key=lambda key: (order[key[0]], key[1]))
    names = {"range": "range of the user", "wait": "wait"}
    handles = [Patch(label=names.get(name, name), **styles[kind, name]) for kind, name in shown]
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=min(len(handles), 8),
        fontsize="small",
        frameon=False,
    )


def _joined(times: list[tuple[float, float]], pixel: float) -> list[tuple[float, float]]:
    """Begins and widths, merging bars that cannot be distinguished."""
    result: list[tuple[float, float]] = []
    for began, width in sorted(times):
        if result:
            last, own = result[-1]
            if began - (last + own) < pixel / 2 and min(width, own) < pixel:
                result[-1] = (last, max(own, began + width - last))
                continue
        result.append((began, width))
    return result


def _style(kind: str, name: str) -> dict[str, Any]:
    """The style of a bar. Waits, ranges and operations can cover each other; all stay visible."""
    if kind == "operation":
        return {"facecolor": _colour(name), "edgecolor": "white", "linewidth": 0.3, "zorder": 3}
    if kind == "wait":
        return {"facecolor": "none", "edgecolor": _WAIT, "hatch": "/////", "linewidth": 0.5} | {
            "zorder": 4
        }
    colour = _COMPUTE if kind == "compute" else _RANGE
    return {"facecolor": colour, "edgecolor": "#999999", "linewidth": 0.4, "zorder": 2}


def _describe(axes: Axes, merged: Merged, rows: dict[tuple[int, Lane], int]) -> None:
    """Draw lines between the ranks, and the names of lanes."""
    lanes = [Lanes(trace) for trace in merged.traces]
    labels: dict[int, str] = {}
    for (position, lane), row in rows.items():
        name = lanes[position].name(lane).split(" (")[0]
        labels.setdefault(row, f"{merged.label(position)}  {name}")
    tops: dict[int, int] = {}
    for (position, _), row in rows.items():
        tops[position] = min(tops.get(position, row), row)
    for top in tops.values():
        if top > 0:
            axes.axhline(top - 0.5, color="black", linewidth=0.6)
    axes.set_yticks(sorted(labels), [labels[row] for row in sorted(labels)], fontsize="small")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel("ms since the trace began")
    axes.grid(axis="x", linewidth=0.3, zorder=0)
