"""Rows as a table and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pynccl.tools.lab.row import Row
from pynccl.tools.text import size_text, table

__all__ = ["hidden_text", "varying", "write_json", "write_table"]


def varying(rows: Sequence[Row]) -> list[str]:
    """The names of the settings that differ between rows, with the size last."""
    names = sorted(rows[0].setting, key=lambda name: name == "nbytes") if rows else []
    return [name for name in names if len({str(row.setting.get(name)) for row in rows}) > 1]


def hidden_text(row: Row) -> str:
    """The hidden share, or its interval if the verdict is not certain: "85%", "40-95%"."""
    if row.verdict.kind != "not certain":
        return f"{round(row.hidden, 2) + 0.0:.0%}"  # no "-0%"
    low, high = (min(max(share, 0.0), 1.0) for share in row.hidden_interval)
    return f"{low * 100:.0f}-{high:.0%}"


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
        low, high = row.exposed_interval
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
                f"{row.exposed * 1e3:.3f} ({low * 1e3:.3f}-{high * 1e3:.3f})",
                hidden_text(row),
                f"{row.bound * 1e3:.3f}",
                f"{row.compute_slowdown:.2f}/{row.communication_slowdown:.2f}",
                str(row.verdict),
            ]
        )
    return table(header, lines, left=(len(header) - 1,))


def write_json(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows with their samples in seconds."""
    data: dict[str, Any] = {"unit": "seconds", "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(data, indent=1) + "\n")
