"""Results as tables and JSON files."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.machine import scrub
from benchmarks.timing import Figure
from pynccl.tools.text import significant, size_text

__all__ = ["Table", "line", "summary", "table", "write_json"]


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table in Markdown, with a column for each key except ``samples``.

    The key determines the unit: ``seconds`` and ``..._seconds`` are printed in microseconds,
    ``bytes`` as sizes, ``hidden`` as percentages. Columns that are None in all rows are omitted.
    """
    keys = dict.fromkeys(key for row in rows for key in row if key != "samples")
    keys = {key: None for key in keys if any(row.get(key) is not None for row in rows)}
    cells = [map(_head, keys), *([_cell(key, row.get(key)) for key in keys] for row in rows)]
    lines = [f"| {' | '.join(each)} |" for each in cells]
    return "\n".join([lines[0], f"|{'---|' * len(keys)}", *lines[1:]])


class Table:
    """Prints such a table row by row; all rows have the same keys."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def add(self, row: Mapping[str, object]) -> None:
        """Print a row, after the heads if it is the first one."""
        heads = [_head(key) for key in row]
        if not self._widths:
            # The longest name in the first column is reduce_scatter.
            self._widths = [14, *(max(7, len(head)) for head in heads[1:])]
            self._print(heads)
            print(f"|{'|'.join('-' * (width + 2) for width in self._widths)}|")
        self._print([_cell(key, value) for key, value in row.items()])

    def _print(self, cells: Sequence[str]) -> None:
        first, *rest = self._widths
        texts = (cell.rjust(width) for cell, width in zip(cells[1:], rest, strict=True))
        print(f"| {' | '.join([cells[0].ljust(first), *texts])} |", flush=True)


def _head(key: str) -> str:
    return re.sub(r"seconds$", "us", key).replace("_", " ")


def _cell(key: str, value: object) -> str:
    if value is None:
        return "-"
    if key == "bytes" and isinstance(value, int):
        return f"{value} B" if value % 1024 else size_text(value)
    if not isinstance(value, float):
        return str(value)
    if key == "hidden":
        return f"{value:.0%}"
    return significant(value * 1e6, 3) if key.endswith("seconds") else significant(value, 2)


def line(
    figures: Sequence[Figure],
    libraries: Sequence[str],
    compared: Sequence[str],
    columns: Iterable[str] = ("seconds",),
) -> Figure:
    """Return a row of a table with the figures of several libraries.

    Args:
        figures: the figures, at least one.
        libraries: the libraries to show, ours first.
        compared: the libraries whose time is divided by ours.
        columns: the columns of each library.
    """
    found = {figure["library"]: figure for figure in figures}
    ours = found.get(libraries[0], {})
    row = _about(figures[0])
    for library in libraries:
        for column in columns:
            row[f"{library} {column}"] = found.get(library, {}).get(column)
    for library in compared:
        measured = ours and library in found
        row[f"/ {library}"] = found[library]["seconds"] / ours["seconds"] if measured else None
    return {**row, "spread": ours.get("spread")}


def _about(figure: Figure) -> Figure:
    """Return the columns before the library's."""
    return dict(itertools.takewhile(lambda item: item[0] != "library", figure.items()))


def summary(rows: Sequence[Sequence[Figure]], ours: str, library: str) -> str:
    """Describe in how many rows, and by how much, ours is faster than another library; return '' if
    no row has both.
    """
    ratios = {}
    for row in rows:
        seconds = {figure["library"]: figure["seconds"] for figure in row}
        if ours in seconds and library in seconds:
            name = " ".join(map(str, _about(row[0]).values()))
            ratios[name] = seconds[library] / seconds[ours]
    if not ratios:
        return ""
    behind = [f"{name} ({ratio:.2f})" for name, ratio in ratios.items() if ratio < 1]
    return (
        f"{library}: {ours} is ahead in {len(ratios) - len(behind)} of {len(ratios)} rows, "
        f"{significant(statistics.geometric_mean(ratios.values()), 1)} times as fast in the "
        f"geometric mean; behind in {len(behind)}{': ' if behind else ''}{', '.join(behind)}"
    )


def write_json(path: Path, rows: Sequence[object], **about: object) -> None:
    """Write the results of a run, with its date and command.

    Args:
        path: the file; its folder is created.
        rows: the figures.
        **about: further entries.
    """
    content = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        **about,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_scrubbed(content), indent=1) + "\n")
    print(f"wrote {os.path.relpath(path)}", flush=True)


def _scrubbed(value: object) -> object:
    """Return a JSON value without the paths and the name of this machine."""
    match value:
        case str():
            return scrub(value)
        case dict():
            return {key: _scrubbed(one) for key, one in value.items()}
        case list() | tuple():
            return [_scrubbed(one) for one in value]
    return value
