"""Rows as a table, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pynccl.tools.lab.row import Row
from pynccl.tools.lab.sizes import size_text

__all__ = ["read_json", "table", "varying", "write_csv", "write_json", "write_table"]

_TIMES = ("compute", "communication", "both", "exposed", "exposed_spread", "bound")
_NUMBERS = ("hidden", "compute_slowdown", "communication_slowdown")


def varying(rows: Sequence[Row]) -> list[str]:
    """The names of the settings that differ between rows, with the size last."""
    names = sorted(rows[0].setting, key=lambda name: name == "nbytes") if rows else []
    return [name for name in names if len({str(row.setting.get(name)) for row in rows}) > 1]


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Align columns: the last one left, all others right."""
    cells = [list(header), *(list(line) for line in lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width).rstrip() if column == len(header) - 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def write_table(rows: Sequence[Row]) -> str:
    """Format rows as text: times in milliseconds, preceded by the settings that differ."""
    names = varying(rows) or [name for name in ("nbytes",) if rows and name in rows[0].setting]
    header = [
        *("size" if name == "nbytes" else name for name in names),
        "T_compute",
        "T_comm",
        "T_both",
        "exposed",
        "hidden",
        "bound",
        "slower",
        "verdict",
    ]
    lines = []
    for row in rows:
        setting = [
            size_text(int(value)) if name == "nbytes" else str(value)
            for name in names
            for value in [row.setting.get(name, "")]
        ]
        times = [row.compute.median, row.communication.median, row.both.median]
        lines.append(
            [
                *setting,
                *(f"{seconds * 1e3:.3f}" for seconds in times),
                f"{row.exposed * 1e3:.3f}+-{row.exposed_spread * 1e3:.3f}",
                f"{row.hidden:.0%}",
                f"{row.bound * 1e3:.3f}",
                f"{row.compute_slowdown:.2f}/{row.communication_slowdown:.2f}",
                str(row.verdict),
            ]
        )
    return table(header, lines)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write one line per row; times are in seconds."""
    settings = list(dict.fromkeys(name for row in rows for name in row.setting))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [*settings, *(f"{name}_s" for name in _TIMES), *_NUMBERS, "verdict", "reason"]
        )
        for row in rows:
            writer.writerow(
                [
                    *(row.setting.get(name, "") for name in settings),
                    *(row.as_dict()[name] for name in (*_TIMES, *_NUMBERS)),
                    row.verdict.kind,
                    row.verdict.reason,
                ]
            )


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows with their samples in seconds."""
    data: dict[str, Any] = {"unit": "seconds", "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(data, indent=1) + "\n")


def read_json(path: Path) -> list[Row]:
    """Read rows written by write_json().

    Raises:
        OSError, ValueError: the file cannot be read, or has another format.
    """
    data = json.loads(path.read_text())
    try:
        return [Row.from_dict(row) for row in data["rows"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of the overlap lab: {error!r}") from error
