"""The table on the terminal, and the JSON file."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from benchmarks.machine import Machine
from benchmarks.results import Plan, Row, Settings, Timing

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Table", "describe", "summary", "write_json"]


class Table:
    """Prints rows as they come; on a terminal a progress bar stands below them."""

    def __init__(self, plan: Plan, device: str) -> None:
        self._rows = plan.rows
        self._hosts = device == "cuda"
        self._progress = _progress() if sys.stdout.isatty() else None
        if self._progress:
            self._task = self._progress.add_task("measuring", total=plan.rows)
        width = len(self._columns())
        names = "".join(f"{name:>{width}}" for name in plan.libraries)
        self._print(f"{'':28}{names}")
        self._print(f"{'collective':<15}{'bytes':>13}{self._columns() * 2}{'times faster':>15}")

    def __enter__(self) -> Table:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress:
            self._progress.stop()

    def row(self, row: Row) -> None:
        ratio = "-" if row.times_faster is None else f"{row.times_faster:.2f}"
        cells = self._cells(row.pynccl) + self._cells(row.torch)
        self._print(f"{row.collective:<15}{row.nbytes:>13}{cells}{ratio:>15}")
        if self._progress:
            self._progress.advance(self._task)

    def note(self, text: str) -> None:
        self._print(f"note: {text}")

    def _columns(self) -> str:
        return f"{'us':>12}{'host us' if self._hosts else '':>{10 * self._hosts}}" + (
            f"{'algbw':>9}{'busbw':>9}"
        )

    def _cells(self, timing: Timing | None) -> str:
        if timing is None:
            return f"{'-':>12}{'-' * self._hosts:>{10 * self._hosts}}{'-':>9}{'-':>9}"
        host = "" if timing.host_seconds is None else f"{_digits(timing.host_seconds * 1e6):>10}"
        microseconds = _digits(timing.seconds * 1e6)
        return f"{microseconds:>12}{host}{timing.algbw:>9.2f}{timing.busbw:>9.2f}"

    def _print(self, line: str) -> None:
        if self._progress:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)


def _progress() -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        transient=True,
    )


def _digits(value: float) -> str:
    """Three significant digits, or as many as stand before the point."""
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{places}f}"


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
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    faster = sum(ratio > 1 for ratio in ratios)
    return (
        f"pynccl is faster in {faster} of {len(ratios)} rows, "
        f"{mean:.1f} times in the geometric mean"
    )


def write_json(
    path: Path, settings: Settings, machine: Machine, rows: list[Row], **about: object
) -> None:
    """Write everything that is known of a run."""
    settings_ = dataclasses.asdict(settings)
    for of_this_run in ("folder", "seconds"):
        del settings_[of_this_run]
    content = {
        **about,
        "settings": settings_,
        "machine": dataclasses.asdict(machine),
        "rows": [{**dataclasses.asdict(row), "times_faster": row.times_faster} for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
