"""Draws the tables of docs/performance.md: docs/images/performance/*.png.

    python -m tools.performance_plots

Each picture has the checksum of its table in it; tests/package/test_performance_plots.py compares
it, so that a table and its picture are of the same measurement.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

__all__ = ["PICTURES", "checksum", "main", "table"]

_ROOT = Path(__file__).parents[1]
_DOCUMENT = _ROOT / "docs" / "performance.md"
_FOLDER = _ROOT / "docs" / "images" / "performance"

# The pictures, and the beginning of the header of their tables.
PICTURES = {
    _FOLDER / "calls.png": "| call | ns |",
    _FOLDER / "host-2-ranks.png": "| 2 ranks, us | bytes |",
    _FOLDER / "host-4-ranks.png": "| 4 ranks, us | bytes |",
}
_UNITS = {"": 1, "KB": 2**10, "MB": 2**20}


def table(header: str) -> list[list[str]]:
    """The cells of a table of the document.

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
    """What a picture has of its table.

    Args:
        header: the beginning of the table's first line.

    Returns:
        Hexadecimal digits.

    Raises:
        ValueError: there is no such table.
    """
    return hashlib.sha256(repr(table(header)).encode()).hexdigest()


def _bytes(text: str) -> int:
    """The size of "4 to 16", "64 KB" or "1 MB"."""
    found = re.match(r"(\d+)(?: to \d+)?(?: (KB|MB))?$", text)
    if not found:
        raise ValueError(f"{text!r} is no size")
    return int(found[1]) * _UNITS[found[2] or ""]


def _draw_calls(path: Path, header: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    operations: dict[str, list[tuple[str, float]]] = {}
    operation = ""
    for name, nanoseconds, *_ in table(header):
        if name.startswith("**"):
            operation = name.strip("*")
        else:
            operations.setdefault(operation, []).append((name, float(nanoseconds)))
    sizes = [len(rows) for rows in operations.values()]
    figure, panels = plt.subplots(
        len(operations),
        1,
        figsize=(9, 0.3 * sum(sizes) + 1.5),
        height_ratios=sizes,
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, (title, rows) in zip(panels.flat, operations.items(), strict=True):
        colors = ["C0" if name.startswith("pynccl") else "C1" for name, _ in rows[::-1]]
        bars = panel.barh(*zip(*rows[::-1], strict=True), color=colors)
        panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
        panel.set_xscale("log")
        panel.margins(x=0.15)
        panel.set_title(title, fontsize=10)
    figure.supxlabel("nanoseconds of one call", fontsize=10)
    figure.savefig(path, dpi=100, metadata={"Description": checksum(header)})
    plt.close(figure)


def _draw_sizes(path: Path, header: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = ("hostnccl", "MPICH", "gloo", "one copy")
    operations: dict[str, list[tuple[int, list[float | None]]]] = {}
    for operation, size, *cells in table(header):
        values = [
            float(cell) if re.match(r"[\d.]+$", cell) else None for cell in cells[: len(names)]
        ]
        operations.setdefault(operation, []).append((_bytes(size), values))
    operations = {name: rows for name, rows in operations.items() if len(rows) > 1}
    columns = 3
    lines = -(-len(operations) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(10, 2.6 * lines + 0.6), squeeze=False, layout="constrained"
    )
    for panel in panels.flat[len(operations) :]:
        panel.set_axis_off()
    for panel, (operation, rows) in zip(panels.flat, operations.items(), strict=False):
        for i, name in enumerate(names):
            points = [(size, values[i]) for size, values in rows if values[i] is not None]
            if points:
                style = "k:" if name == "one copy" else f"C{i}o-"
                panel.plot(*zip(*points, strict=True), style, label=name, markersize=3)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(operation, fontsize=10)
        panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    figure.supxlabel("bytes", fontsize=10)
    figure.supylabel("microseconds", fontsize=10)
    figure.savefig(path, dpi=100, metadata={"Description": checksum(header)})
    plt.close(figure)


def main() -> None:
    """Draw all of them."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for path, header in PICTURES.items():
        draw = _draw_calls if path.stem == "calls" else _draw_sizes
        draw(path, header)


if __name__ == "__main__":
    main()
