"""The report of benchmarks.gpu: Markdown, JSON with every sample, plots."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks.gpu_figures import BARE, CallCost, KernelTime, LabRow, Overlap, Sequence, Start
from benchmarks.machine import Machine, rows, table
from benchmarks.results import Absent, Note, Plan, Row, Timing

__all__ = ["Findings"]

_Figure = TypeVar("_Figure")

_SMALL = 64 << 10  # bytes, up to which latency counts, and bandwidth beyond
_TORCH = "torch.distributed"
_ASYNC = ", async, wait"


class Findings:
    """The results of all worlds so far.

    Attributes:
        machine: where they ran.
        failures: what went wrong, by number of ranks.
    """

    def __init__(self, machine: Machine, device: str) -> None:
        self.machine = machine
        self.failures: dict[int, list[str]] = {}
        self._device = device
        self._figures: dict[int, dict[object, object]] = {}
        self._notes: dict[int, list[str]] = {}

    def take(self, nranks: int, message: object) -> None:
        """Keep a report of the ranks; a repeated measurement replaces the earlier one."""
        match message:
            case Note(text):
                self._notes.setdefault(nranks, []).append(text)
            case Plan():
                pass
            case _:
                fields = ("section", "way", "collective", "nbytes", "library")
                key = type(message), *(getattr(message, field, None) for field in fields)
                self._figures.setdefault(nranks, {})[key] = message

    def fail(self, nranks: int, reason: str) -> None:
        """Keep why a world ended before it was done."""
        self.failures.setdefault(nranks, []).append(reason)

    def write(self, stem: Path, date: str, seconds: float, *, plots: bool = True) -> Iterator[Path]:
        """Write ``stem.md``, ``stem.json`` and, if asked, a plot for each number of ranks.

        Args:
            stem: path without the suffix.
            date: ISO 8601.
            seconds: what all of it took.
            plots: whether to write the plots.

        Yields:
            The files.
        """
        stem.parent.mkdir(parents=True, exist_ok=True)
        pictures: dict[int, str] = {}
        for nranks in self._figures if plots else ():
            from benchmarks.plot import write_plot  # takes a second to import

            if rows := self._of(nranks, Row):
                path = stem.with_name(f"{stem.name}-{nranks}ranks.png")
                write_plot(path, rows, f"{self._title(nranks)}, on {self._where()}")
                pictures[nranks] = path.name
                yield path
        path = stem.with_name(f"{stem.name}.json")
        path.write_text(json.dumps(self._content(date, seconds), indent=1) + "\n")
        yield path
        path = stem.with_name(f"{stem.name}.md")
        path.write_text("\n\n".join(self._parts(date, seconds, pictures)) + "\n")
        yield path

    def _content(self, date: str, seconds: float) -> dict[str, object]:
        return {
            "date": date,
            "seconds": round(seconds, 1),
            "machine": dataclasses.asdict(self.machine),
            "failures": self.failures,
            "notes": self._notes,
            "figures": {
                nranks: [
                    {"kind": type(figure).__name__, **dataclasses.asdict(figure)}  # type: ignore[call-overload]
                    for figure in figures.values()
                ]
                for nranks, figures in self._figures.items()
            },
        }

    def _parts(self, date: str, seconds: float, plots: dict[int, str]) -> Iterator[str]:
        yield f"# pynccl compared with torch.distributed on {self._where()}, {date}"
        yield self._preface(seconds)
        yield "## Machine\n" + table(("what", "which"), rows(self.machine))
        for nranks in sorted({*self._figures, *self.failures}):
            yield f"## {self._title(nranks)}"
            for reason in self.failures.get(nranks, []):
                yield f"A part of it failed:\n\n```\n{reason}\n```"
            for note in self._notes.get(nranks, []):
                yield f"Note: {note}"
            engine = self._engine(nranks)
            if engine:
                yield f"torch's engine is {engine}. The others are compared to it."
            if absent := self._of(nranks, Absent):
                lines = [(one.library, " ".join(one.reason.split())) for one in absent]
                yield "### Not measured\n" + table(("library", "why"), lines)
            yield from self._sections(nranks, engine)
            found = self._of(nranks, Row)
            if small := [row for row in found if row.nbytes <= _SMALL]:
                yield "### Latency\n" + _latencies(small)
                if any(row.pynccl.host_seconds is not None for row in small):
                    yield "### The host's time in the calls\n" + _latencies(small, on_host=True)
            if large := [row for row in found if row.nbytes > _SMALL]:
                yield "### Bandwidth\n" + _bandwidths(large)
            if plot := plots.get(nranks):
                yield f"![time against size, {nranks} ranks]({plot})"

    def _sections(self, nranks: int, engine: str) -> Iterator[str]:
        """What is not a row of the collectives."""
        if calls := self._of(nranks, CallCost):
            yield "### The host's time in one all_reduce\n" + _calls(calls, engine)
        if kernels := self._of(nranks, KernelTime):
            yield "### all_reduce by a kernel over pynccl/device.h\n" + _kernels(kernels)
        if sequences := self._of(nranks, Sequence):
            first = sequences[0]
            title = f"{first.length} {first.collective} in sequence"
            yield f"### {title}\n{_sequences(sequences, engine)}"
        if overlaps := self._of(nranks, Overlap):
            yield "### A matrix product at the same time\n" + _overlaps(overlaps, engine)
        if found := self._of(nranks, LabRow):
            yield "### The overlap lab\n" + _lab_rows(found)

    def _of(self, nranks: int, kind: type[_Figure]) -> list[_Figure]:
        return [
            figure for figure in self._figures.get(nranks, {}).values() if isinstance(figure, kind)
        ]

    def _engine(self, nranks: int) -> str:
        starts = self._of(nranks, Start)
        return starts[0].engine if starts else ""

    def _where(self) -> str:
        return self.machine.gpus[0] if self.machine.gpus else "CPUs"

    def _title(self, nranks: int) -> str:
        starts = self._of(nranks, Start)
        gpus = starts[0].gpus if starts else len(self.machine.gpus)
        title = f"{nranks} rank{'s' if nranks > 1 else ''}"
        return f"{title} sharing {gpus} GPU" if 0 < gpus < nranks else title

    def _preface(self, seconds: float) -> str:
        text = (
            f"Measured in {seconds:.0f} s, all libraries in the same processes and in turns, each "
            "result checked first. Times are medians of samples, a sample the slowest rank's mean. "
            "pynccl is its Communicator, `pynccl as dist` its functions of torch.distributed, "
            "`torch pynccl` its backend of torch.distributed. A ratio above 1 means less time than "
            "torch's engine takes."
        )
        if self._device == "cpu":
            return f"{text}\n\n**A dry run over hostnccl and gloo. It says nothing of GPUs.**"
        if any(nranks > len(self.machine.gpus) for nranks in self._figures):
            text += (
                "\n\n**Ranks that share a GPU** are processes that take turns on it, connected by "
                "sockets or by memory of the host. Their times show that it works and how the "
                "libraries compare, not what NVLink gives."
            )
        return text


def _us(seconds: float | None) -> str:
    """Microseconds with three digits, or as many as stand before the point."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{places}f}"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2f}" if theirs and ours else "-"


def _named(way: str, engine: str) -> str:
    """A way with torch's engine in its name."""
    return re.sub(r"^(torch(?:\.distributed)?)(?=,|$)", rf"\1 {engine}", way)


def _calls(costs: list[CallCost], engine: str) -> str:
    by_way = {cost.way: cost for cost in costs}
    bare = by_way.get(BARE)
    lines = []
    for cost in costs:
        over = cost.seconds - bare.seconds if bare else None
        compared = by_way.get(_TORCH + _ASYNC * cost.way.endswith(_ASYNC))
        lines.append(
            (
                _named(cost.way, engine),
                _us(cost.seconds),
                "-" if over is None else f"{over * 1e6:+.2f}",
                _ratio(compared.seconds if compared else None, cost.seconds),
            )
        )
    head = (f"{costs[0].nbytes} bytes", "us", "over the C call, us", f"torch {engine} / this")
    return table(head, lines)


def _kernels(kernels: list[KernelTime]) -> str:
    """Microseconds, and in parentheses the ratio to the library's all_reduce of the same kind."""
    sizes = list(dict.fromkeys(kernel.nbytes for kernel in kernels))
    cells = {(kernel.way, kernel.nbytes): kernel.seconds for kernel in kernels}
    lines = []
    for way in dict.fromkeys(kernel.way for kernel in kernels):
        library = re.sub(r"^kernel, [a-z ]+", "all_reduce", way)
        line = []
        for size in sizes:
            seconds, of_library = cells[way, size], cells[library, size]
            line.append(_us(seconds) + f" ({seconds / of_library:.2f})" * (way != library))
        lines.append((way, *line))
    return table(("us for one", *map(_size, sizes)), lines)


def _sequences(sequences: list[Sequence], engine: str) -> str:
    sizes = list(dict.fromkeys(sequence.nbytes for sequence in sequences))
    cells = {(sequence.way, sequence.nbytes): sequence.seconds for sequence in sequences}
    ways = dict.fromkeys(sequence.way for sequence in sequences)
    head = ("us for one", *(_size(nbytes) for nbytes in sizes))
    lines = [
        (_named(way, engine), *(_us(cells.get((way, nbytes))) for nbytes in sizes)) for way in ways
    ]
    for kind in ("called", "a CUDA graph"):
        ours, theirs = f"pynccl, {kind}", f"torch, {kind}"
        if theirs in ways:
            ratios = (_ratio(cells[theirs, size], cells[ours, size]) for size in sizes)
            lines.append((f"torch {engine} / pynccl, {kind}", *ratios))
    return table(head, lines)


def _overlaps(overlaps: list[Overlap], engine: str) -> str:
    first = overlaps[0]
    head = (
        f"{first.collective} of {_size(first.nbytes)}",
        "product, us",
        "collective, us",
        "together, us",
        "hidden of the shorter",
    )
    lines = [
        (
            _named(overlap.way, engine),
            *map(_us, (overlap.matmul, overlap.communication, overlap.together)),
            f"{100 * overlap.hidden:.0f} %",
        )
        for overlap in overlaps
    ]
    return table(head, lines)


def _lab_rows(found: list[LabRow]) -> str:
    head = (
        "collective",
        "bytes",
        "CTAs",
        "product, us",
        "collective, us",
        "both, us",
        "hidden",
        "slower, product / collective",
        "verdict",
    )
    lines = [
        (
            row.collective,
            _size(row.nbytes),
            row.ctas,
            *map(_us, (row.compute, row.communication, row.both)),
            f"{100 * row.hidden:.0f} %",
            f"{row.compute_slowdown:.2f} / {row.communication_slowdown:.2f}",
            row.verdict,
        )
        for row in found
    ]
    return table(head, lines)


def _libraries(found: list[Row]) -> list[str]:
    """The names of all that was timed, pynccl first and torch's engine second."""
    names = dict.fromkeys(timing.library for row in found for timing in row.timings[:1])
    names |= dict.fromkeys(row.torch.library for row in found if row.torch)
    return list(names | dict.fromkeys(t.library for row in found for t in row.timings))


def _times(row: Row, libraries: list[str], *, on_host: bool = False) -> list[str]:
    """Microseconds, and in parentheses the ratio of the time of torch's engine to them."""

    def seconds(timing: Timing | None) -> float | None:
        if timing is None:
            return None
        return timing.host_seconds if on_host else timing.seconds

    by_name = {timing.library: timing for timing in row.timings}
    cells = []
    for name in libraries:
        timing = by_name.get(name)
        cell = _us(seconds(timing))
        if timing and timing is not row.torch and row.torch:
            cell += f" ({_ratio(seconds(row.torch), seconds(timing))})"
        cells.append(cell)
    return cells


def _latencies(found: list[Row], *, on_host: bool = False) -> str:
    libraries = _libraries(found)
    head = ("collective", "bytes", *(f"{name}, us" for name in libraries))
    lines = [
        (row.collective, row.nbytes, *_times(row, libraries, on_host=on_host)) for row in found
    ]
    return table(head, lines)


def _bandwidths(found: list[Row]) -> str:
    libraries = _libraries(found)
    head = (
        "collective",
        "size",
        *(f"{name}, us" for name in libraries),
        *(f"{name} busbw, GB/s" for name in libraries),
    )
    lines = []
    for row in found:
        busbw = {timing.library: f"{timing.busbw:.2f}" for timing in row.timings}
        rates = (busbw.get(name, "-") for name in libraries)
        lines.append((row.collective, _size(row.nbytes), *_times(row, libraries), *rates))
    return table(head, lines)


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"
