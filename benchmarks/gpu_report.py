"""The report of benchmarks.gpu: Markdown, JSON with every sample, plots."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Lines
from pathlib import Path
from typing import TypeVar

from benchmarks.gpu_figures import BARE, CallCost, Overlap, Sequence, Start
from benchmarks.machine import Machine, rows
from benchmarks.results import Note, Plan, Row

__all__ = ["Findings"]

_Figure = TypeVar("_Figure")

_SMALL = 64 << 10  # bytes, up to which latency counts, and bandwidth beyond
_SYNC = ("pynccl as dist", "torch.distributed")


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
                fields = ("section", "way", "collective", "nbytes")
                key = type(message), *(getattr(message, field, None) for field in fields)
                self._figures.setdefault(nranks, {})[key] = message

    def fail(self, nranks: int, reason: str) -> None:
        """Keep why a world ended before it was done."""
        self.failures.setdefault(nranks, []).append(reason)

    def write(self, stem: Path, date: str, seconds: float) -> Iterator[Path]:
        """Write ``stem.md``, ``stem.json`` and a plot for each number of ranks.

        Args:
            stem: path without the suffix.
            date: ISO 8601.
            seconds: what all of it took.

        Yields:
            The files.
        """
        from benchmarks.plot import write_plot  # takes a second to import

        stem.parent.mkdir(parents=True, exist_ok=True)
        plots: dict[int, str] = {}
        for nranks in self._figures:
            if rows := self._of(nranks, Row):
                path = stem.with_name(f"{stem.name}-{nranks}ranks.png")
                write_plot(path, rows, f"{self._title(nranks)}, on {self._where()}")
                plots[nranks] = path.name
                yield path
        path = stem.with_name(f"{stem.name}.json")
        path.write_text(json.dumps(self._content(date, seconds), indent=1) + "\n")
        yield path
        path = stem.with_name(f"{stem.name}.md")
        path.write_text("\n\n".join(self._parts(date, seconds, plots)) + "\n")
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
        yield "## Machine\n" + _table(("what", "which"), rows(self.machine))
        for nranks in sorted({*self._figures, *self.failures}):
            yield f"## {self._title(nranks)}"
            for reason in self.failures.get(nranks, []):
                yield f"A part of it failed:\n\n```\n{reason}\n```"
            for note in self._notes.get(nranks, []):
                yield f"Note: {note}"
            if calls := self._of(nranks, CallCost):
                yield "### The host's time in one all_reduce\n" + _calls(calls)
            if sequences := self._of(nranks, Sequence):
                first = sequences[0]
                title = f"{first.length} {first.collective} in sequence"
                yield f"### {title}\n{_sequences(sequences)}"
            if overlaps := self._of(nranks, Overlap):
                yield "### A matrix product at the same time\n" + _overlaps(overlaps)
            found = self._of(nranks, Row)
            if small := [row for row in found if row.nbytes <= _SMALL]:
                yield "### Latency\n" + _latencies(small)
            if large := [row for row in found if row.nbytes > _SMALL]:
                yield "### Bandwidth\n" + _bandwidths(large)
            if plot := plots.get(nranks):
                yield f"![time against size, {nranks} ranks]({plot})"

    def _of(self, nranks: int, kind: type[_Figure]) -> list[_Figure]:
        return [
            figure for figure in self._figures.get(nranks, {}).values() if isinstance(figure, kind)
        ]

    def _where(self) -> str:
        return self.machine.gpus[0] if self.machine.gpus else "CPUs"

    def _title(self, nranks: int) -> str:
        starts = self._of(nranks, Start)
        gpus = starts[0].gpus if starts else len(self.machine.gpus)
        title = f"{nranks} rank{'s' if nranks > 1 else ''}"
        return f"{title} sharing {gpus} GPU" if 0 < gpus < nranks else title

    def _preface(self, seconds: float) -> str:
        text = (
            f"Measured in {seconds:.0f} s, both libraries in the same processes and in turns, each "
            "result checked first. Times are medians of samples, a sample the slowest rank's mean."
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


def _table(head: Lines[str], lines: Iterable[Lines[object]]) -> str:
    text = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    text += [f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join(text)


def _us(seconds: float | None) -> str:
    """Microseconds with three digits, or as many as stand before the point."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    places = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{places}f}"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return f"{theirs / ours:.2f}" if theirs and ours else "-"


def _calls(costs: list[CallCost]) -> str:
    by_way = {cost.way: cost for cost in costs}
    bare = by_way.get(BARE)
    lines = []
    for cost in costs:
        over = cost.seconds - bare.seconds if bare else None
        theirs = by_way.get("torch.distributed" + cost.way.removeprefix("pynccl as dist"))
        compared = theirs if cost.way.startswith("pynccl as dist") else by_way.get(_SYNC[1])
        lines.append(
            (
                cost.way,
                _us(cost.seconds),
                "-" if over is None else f"{over * 1e6:+.2f}",
                _ratio(compared.seconds if compared else None, cost.seconds),
            )
        )
    head = (f"{costs[0].nbytes} bytes", "us", "over the C call, us", "torch / this")
    return _table(head, lines)


def _sequences(sequences: list[Sequence]) -> str:
    sizes = list(dict.fromkeys(sequence.nbytes for sequence in sequences))
    cells = {(sequence.way, sequence.nbytes): sequence.seconds for sequence in sequences}
    ways = dict.fromkeys(sequence.way for sequence in sequences)
    head = ("us for one", *(_size(nbytes) for nbytes in sizes))
    lines = [(way, *(_us(cells.get((way, nbytes))) for nbytes in sizes)) for way in ways]
    for kind in ("called", "a CUDA graph"):
        ours, theirs = f"pynccl, {kind}", f"torch, {kind}"
        if theirs in ways:
            ratios = (_ratio(cells[theirs, size], cells[ours, size]) for size in sizes)
            lines.append((f"torch / pynccl, {kind}", *ratios))
    return _table(head, lines)


def _overlaps(overlaps: list[Overlap]) -> str:
    first = overlaps[0]
    head = (
        f"{first.collective} of {_size(first.nbytes)}",
        *("product, us", "collective, us", "together, us", "hidden of the shorter"),
    )
    lines = [
        (
            overlap.way,
            *map(_us, (overlap.matmul, overlap.communication, overlap.together)),
            f"{100 * overlap.hidden:.0f} %",
        )
        for overlap in overlaps
    ]
    return _table(head, lines)


def _latencies(found: list[Row]) -> str:
    hosts = any(row.pynccl.host_seconds is not None for row in found)
    head: tuple[str, ...] = ("collective", "bytes", "pynccl, us", "torch, us", "torch / pynccl")
    if hosts:
        head += ("pynccl on the host, us", "torch on the host, us")
    lines = []
    for row in found:
        theirs = row.torch
        line: tuple[object, ...] = (row.collective, row.nbytes, _us(row.pynccl.seconds))
        line += (
            _us(theirs.seconds if theirs else None),
            _ratio(theirs.seconds if theirs else None, row.pynccl.seconds),
        )
        if hosts:
            line += (_us(row.pynccl.host_seconds), _us(theirs.host_seconds if theirs else None))
        lines.append(line)
    return _table(head, lines)


def _bandwidths(found: list[Row]) -> str:
    head = (
        *("collective", "size", "pynccl, us", "torch, us", "torch / pynccl"),
        *("pynccl algbw, GB/s", "pynccl busbw, GB/s", "torch busbw, GB/s"),
    )
    lines = []
    for row in found:
        theirs = row.torch.seconds if row.torch else None
        lines.append(
            (
                *(row.collective, _size(row.nbytes), _us(row.pynccl.seconds), _us(theirs)),
                _ratio(theirs, row.pynccl.seconds),
                *(f"{row.pynccl.algbw:.2f}", f"{row.pynccl.busbw:.2f}"),
                f"{row.torch.busbw:.2f}" if row.torch else "-",
            )
        )
    return _table(head, lines)


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"
