"""Results as tables and JSON files."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.machine import Machine, scrub
from benchmarks.results import Plan, Row, Settings, Timing

__all__ = [
    "describe",
    "heading",
    "line",
    "microseconds",
    "size",
    "summary",
    "table",
    "write_json",
]


def heading(plan: Plan, device: str) -> str:
    """The two lines above the rows of both libraries."""
    columns = f"{'us':>12}{'host us':>10}" if device == "cuda" else f"{'us':>12}"
    columns += f"{'algbw':>9}{'busbw':>9}"
    names = "".join(f"{name:>{len(columns)}}" for name in plan.libraries)
    return f"{'':28}{names}\n{'collective':<15}{'bytes':>13}{columns * 2}{'times faster':>15}"


def line(row: Row, device: str) -> str:
    """A row of both libraries."""
    ratio = "-" if row.times_faster is None else f"{row.times_faster:.2f}"
    cells = "".join(_cells(timing, device) for timing in (row.pynccl, row.torch))
    return f"{row.collective:<15}{row.nbytes:>13}{cells}{ratio:>15}"


def _cells(timing: Timing | None, device: str) -> str:
    host = (
        f"{microseconds(timing.host_seconds if timing else None):>10}" if device == "cuda" else ""
    )
    if timing is None:
        return f"{'-':>12}{host}{'-':>9}{'-':>9}"
    return f"{microseconds(timing.seconds):>12}{host}{timing.algbw:>9.2f}{timing.busbw:>9.2f}"


def describe(machine: Machine, settings: Settings) -> str:
    """The run in two lines."""
    place = f"{machine.cpu}, {machine.cores} cores"
    if machine.gpus:
        place += f", {len(machine.gpus)} GPU ({', '.join(sorted(set(machine.gpus)))})"
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{settings.nranks} ranks, {settings.dtype}, on {place}\n{versions}"


def summary(rows: list[Row]) -> str:
    """How often and by how much pynccl is faster."""
    ratios = [row.times_faster for row in rows if row.times_faster is not None]
    if not ratios:
        return f"{len(rows)} rows, none of them compared"
    mean = statistics.geometric_mean(ratios)
    faster = sum(ratio > 1 for ratio in ratios)
    return (
        f"pynccl is faster in {faster} of {len(ratios)} rows, "
        f"{mean:.1f} times in the geometric mean"
    )


def write_json(path: Path, rows: Sequence[object], **about: object) -> None:
    """Write the results of a run, with its date, its command and what is known about it.

    Args:
        path: the file; its folder is created.
        rows: what was measured.
        **about: other entries.
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
    """A value of JSON without the paths and the name of this machine."""
    match value:
        case str():
            return scrub(value)
        case dict():
            return {key: _scrubbed(one) for key, one in value.items()}
        case list() | tuple():
            return [_scrubbed(one) for one in value]
    return value


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table in Markdown, with a column for each key but those of sequences.

    The key decides the unit: of ``seconds`` and ``..._seconds`` the cells are microseconds, of
    ``bytes`` sizes, of ``hidden`` percents. A column that is None in all rows is left out.
    """
    keys = dict.fromkeys(key for row in rows for key in row if key != "samples")
    keys = {key: None for key in keys if any(row.get(key) is not None for row in rows)}
    heads = (re.sub(r"seconds$", "us", key).replace("_", " ") for key in keys)
    text = [f"| {' | '.join(heads)} |", f"|{'---|' * len(keys)}"]
    text += [f"| {' | '.join(_cell(key, row.get(key)) for key in keys)} |" for row in rows]
    return "\n".join(text)


def _cell(key: str, value: object) -> str:
    if value is None:
        return "-"
    if key == "bytes" and isinstance(value, int):
        return size(value)
    if not isinstance(value, float):
        return str(value)
    if key == "hidden":
        return f"{value:.0%}"
    return microseconds(value) if key.endswith("seconds") else f"{value:.2f}"


def size(nbytes: int) -> str:
    """A number of bytes with a unit."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def microseconds(seconds: float | None) -> str:
    """Three significant digits, or as many as stand before the point; "-" for None."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    places = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{value:.{places}f}"
