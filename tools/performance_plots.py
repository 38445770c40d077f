"""Plots the tables of docs/performance.md as docs/images/performance/*.png.

    python -m tools.performance_plots

Each plot contains the checksum of its table. tests/package/test_performance_plots.py compares them,
so that a table and its plot show the same measurement.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

__all__ = ["PICTURES", "checksum", "main", "table"]

_ROOT = Path(__file__).parents[1]
_DOCUMENT = _ROOT / "docs" / "performance.md"
_FOLDER = _ROOT / "docs" / "images" / "performance"

# The plots, with the beginning of the header of their tables.
PICTURES = {
    _FOLDER / "calls.png": "| call | ns |",
    _FOLDER / "host-2-ranks.png": "| 2 ranks, us | bytes |",
    _FOLDER / "host-4-ranks.png": "| 4 ranks, us | bytes |",
}
_LIBRARIES = ("hostnccl", "MPICH", "gloo", "one copy")
_UNITS = {"": 1, "KB": 2**10, "MB": 2**20}


def table(header: str) -> list[list[str]]:
    """Return the cells of a table of the document.

    Args:
        header: the beginning of its first line.

    Returns:
        The rows, without the header.

    Raises:
        ValueError: there is no such table.
    """
    lines = _DOCUMENT.read_text().splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(header)), None)
    if start is None:
        raise ValueError(f"header: {_DOCUMENT} has no table {header!r}")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def checksum(header: str) -> str:
    """Return the checksum of a table, which its plot contains.

    Args:
        header: the beginning of the table's first line.

    Returns:
        Hexadecimal digits.

    Raises:
        ValueError: there is no such table.
    """
    return hashlib.sha256(repr(table(header)).encode()).hexdigest()


def _bytes(text: str) -> int:
    """Return the bytes of "4 to 16", "64 KB" or "1 MB"."""
    found = re.match(r"(\d+)(?: to \d+)?(?: (KB|MB))?$", text)
    if not found:
        raise ValueError(f"{text!r} is no size")
    return int(found[1]) * _UNITS[found[2] or ""]


def _calls(header: str) -> list[tuple[str, str, float]]:
    """The name, operation and seconds of each call."""
    operation, calls = "", []
    for name, nanoseconds, *_ in table(header):
        if name.startswith("**"):
            operation = name.strip("*")
        else:
            calls.append((name, operation, float(nanoseconds) * 1e-9))
    return calls


def _figures(header: str) -> list[dict[str, Any]]:
    """A figure for each cell, of operations of several sizes."""
    return [
        {
            "operation": operation,
            "library": library,
            "bytes": _bytes(size),
            "seconds": float(cell) * 1e-6,
        }
        for operation, size, *cells in table(header)
        for library, cell in zip(_LIBRARIES, cells, strict=False)
        if operation != "barrier"
    ]


def main() -> None:
    """Draw all plots."""
    from benchmarks.plot import bars, lines

    for path, header in PICTURES.items():
        metadata = {"Description": checksum(header)}
        if path.stem == "calls":
            bars(path, _calls(header), "", metadata)
        else:
            lines(path, _figures(header), "", metadata)


if __name__ == "__main__":
    main()
