"""Measures pynccl compared with torch.distributed on the GPUs of this machine.

    python -m benchmarks.gpu                   # 1, 2 and 4 ranks, to docs/results
    python -m benchmarks.gpu --device cpu      # the same over hostnccl and gloo, to build/results

One run for each number of ranks, which are processes. In each: the host's time in one call and
what of it is NCCL's own, a sequence of operations called and replayed as a CUDA graph, a matrix
product beside an all_reduce, and every collective over sizes. Each section has a JSON file and a
table of its own, which are written when it is done or has failed. The calls and the collectives are
also those of `import pynccl as dist`, of pynccl's backend of torch.distributed, and of the other
NCCL engines that torch has; what cannot be measured is in the report, with the reason. Results are
checked before they are timed, libraries take turns, and what was measured when the time is up is in
the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import report
from benchmarks.machine import ROOT, Machine, inspect, rows, scrub, slug
from benchmarks.options import positive, tuple_of
from benchmarks.ranks import BenchmarkError, run_ranks
from benchmarks.results import (
    OUR_GRAPH,
    SECTIONS,
    TORCH_GRAPH,
    Agenda,
    Done,
    Figure,
    Note,
    Settings,
    Start,
)
from pynccl.testing import Rank
from pynccl.tools.trace.bandwidth import BUS_FACTORS

__all__ = ["Section", "main"]

_SILENCE = 90.0  # seconds without a report
# What is given up first where a sequence cannot be captured.
_FALLBACKS = (TORCH_GRAPH, OUR_GRAPH)
_K, _M = 1 << 10, 1 << 20
_SMALL = (8, 64, 512, 4 * _K, 16 * _K, 64 * _K)
_LARGE = (_M, 16 * _M, 64 * _M, 256 * _M)
_LARGE_SHARED = (_M, 16 * _M)
_LARGE_ON_CPUS = (_M, 4 * _M)
_QUICK = (8, 4 * _K, _M)
_TITLES = {
    "calls": "The host's time in one all_reduce",
    "kernels": "all_reduce by a kernel over pynccl/device.h",
    "overlap": "A matrix product at the same time",
    "lab": "The overlap lab",
    "collectives": "Collectives",
    "sequences": "Operations in sequence, the time of one",
}


@dataclasses.dataclass
class Section:
    """What one section of one world has found, for its two files.

    Attributes:
        name: of SECTIONS.
        nranks: the world's size.
        machine: where it runs.
        start: the world; None while it has not come up.
        seconds: what it took; 0 while it is not done.
        figures: a repeated measurement replaces the earlier one.
        notes: for the reader.
        failures: why it ended before it was done.
    """

    name: str
    nranks: int
    machine: Machine
    start: Start | None = None
    seconds: float = 0.0
    figures: dict[tuple[object, ...], Figure] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)

    def take(self, message: object) -> None:
        """Keep what the ranks report."""
        match message:
            case Note(text):
                self.notes.append(text)
            case Done(seconds):
                self.seconds = seconds
            case dict():
                key = tuple(value for value in message.values() if isinstance(value, str | int))
                self.figures[key] = message

    def write(self, folder: Path, *, plots: bool) -> None:
        """Write ``<nranks>ranks-<name>.json`` with every sample, and ``.md`` with the table."""
        figures = list(self.figures.values())
        about = dataclasses.asdict(self)
        del about["figures"]
        path = folder / f"{self.nranks}ranks-{self.name}.json"
        report.write_json(path, figures, **about)
        path.with_suffix(".md").write_text(scrub("\n\n".join(self._parts())) + "\n")
        if plots and figures and self.name == "collectives":
            from benchmarks.plot import collectives  # takes a second to import

            collectives(path.with_suffix(".png"), figures, next(self._parts()).removeprefix("# "))

    def _parts(self) -> Iterator[str]:
        gpus = self.start.gpus if self.start else len(self.machine.gpus)
        shares = 0 < gpus < self.nranks
        where = self.machine.gpus[0] if self.machine.gpus else "CPUs"
        title = f"# {_TITLES[self.name]}: {self.nranks} rank{'s' if self.nranks > 1 else ''}"
        yield f"{title}{f' sharing {gpus} GPU' if shares else ''}, on {where}"
        yield _HOW
        if not self.machine.gpus:
            yield "**A dry run over hostnccl and gloo. It says nothing of GPUs.**"
        if shares:
            yield _SHARED
        if self.start:
            yield f"torch's engine is {self.start.engine}. The others are compared to it."
        for reason in self.failures:
            yield f"A part of it failed:\n\n```\n{reason}\n```"
        for note in self.notes:
            yield f"Note: {note}"
        if self.figures:
            yield report.table(list(self.figures.values()))
        if self.start and self.start.absent:
            absent = self.start.absent.items()
            yield "Not measured:"
            yield report.table(
                [{"library": name, "why": " ".join(why.split())} for name, why in absent]
            )
        yield report.table([{"what": what, "which": which} for what, which in rows(self.machine)])


_HOW = """\
All libraries are measured in the same processes and in turns, each result is checked first. Times
are medians of samples, a sample the slowest rank's mean. pynccl is its Communicator, `pynccl as
dist` its functions of torch.distributed, `torch pynccl` its backend of torch.distributed. \"times
faster\" above 1 means less time than torch's engine takes; of kernels, than the library's
all_reduce."""
_SHARED = """\
**Ranks that share a GPU** are processes that take turns on it, connected by sockets or by memory of
the host. Their times show that it works and how the libraries compare, not what NVLink gives."""


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    machine = inspect("cuda" if options.device == "cuda" else "host")
    if not options.out:
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        results = ROOT / ("docs" if options.device == "cuda" else "build") / "results"
        options.out = results / f"{date}-{slug(machine)}-bench"
    options.unbuilt = _build_backend()
    stop = time.monotonic() + options.total
    failed = False
    for number, nranks in enumerate(options.ranks):
        left = stop - time.monotonic()
        share = left / sum(max(1, ranks) ** 0.5 for ranks in options.ranks[number:])
        failed |= _measure(machine, options, nranks, share * max(1, nranks) ** 0.5)
    return int(failed)


def _measure(machine: Machine, options: argparse.Namespace, nranks: int, seconds: float) -> bool:
    """Run one world; where a section of it fails, another one for the sections that are left.

    Returns:
        Whether any section failed.
    """
    print(f"{nranks} ranks, {seconds:.0f} s", flush=True)
    deadline = time.monotonic() + seconds
    agenda: Agenda | None = Agenda(SECTIONS, frozenset(), options.quick)
    sections = {name: Section(name, nranks, machine) for name in SECTIONS}
    others, failed = True, False
    while agenda:
        left = [sections[name] for name in agenda.sections]
        try:
            _run(left, options, agenda, deadline=deadline, others=others)
            return failed
        except BenchmarkError as error:
            reason = str(error)
        failed = True
        print(f"  error: {reason}", file=sys.stderr, flush=True)
        current = next((section for section in left if not section.seconds), left[-1])
        current.failures.append(reason)
        current.write(options.out, plots=options.plots)
        if time.monotonic() > deadline:
            break
        if others and not current.start:
            others = False
            for section in left:
                section.take(Note("the ranks did not come up: once more without the others"))
            continue
        done = {section.name for section in left if section.seconds}
        agenda = agenda.after(done, _FALLBACKS if options.device == "cuda" else ())
    return failed


def _run(
    sections: list[Section],
    options: argparse.Namespace,
    agenda: Agenda,
    *,
    deadline: float,
    others: bool,
) -> None:
    """Run a world; the files of a section are written when it is done."""
    nranks, gpus = sections[0].nranks, len(sections[0].machine.gpus)
    settings = Settings(
        nranks=nranks,
        device=options.device,
        dtype="float32",
        collectives=tuple(BUS_FACTORS),
        sizes=_sizes(options, nranks, gpus),
        repeats=options.repeats or (3 if options.quick else 7),
        budget=0.002 if options.quick else 0.01,
        seconds=(deadline - time.monotonic()) * 0.6,
        others=others,
        unbuilt=options.unbuilt,
    )
    left = iter(sections)
    current = next(left)
    for message in run_ranks(nranks, _rank, (settings, agenda), _SILENCE):
        if isinstance(message, Start):
            for section in sections:
                section.start = message
            print(f"  up, on {message.gpus or 'no'} GPU", flush=True)
        current.take(message)
        if isinstance(message, Done):
            current.write(options.out, plots=options.plots)
            print(f"  {current.name}: {message.seconds:.1f} s", flush=True)
            current = next(left, current)
        if time.monotonic() > deadline:
            raise BenchmarkError("its time was over")


def _build_backend() -> str:
    """Build pynccl's backend, which takes longer than the ranks may; why that fails, or ''."""
    from pynccl.c10d.build import build

    try:
        build()
    except RuntimeError as error:
        return str(error)
    return ""


def _rank(rank: Rank, settings: Settings, agenda: Agenda) -> None:
    from benchmarks.gpu_rank import run  # torch, which only the ranks need

    run(rank, settings, agenda)


def _sizes(options: argparse.Namespace, nranks: int, gpus: int) -> tuple[int, ...]:
    if options.quick:
        return _QUICK
    if options.device == "cpu":
        return (*_SMALL, *_LARGE_ON_CPUS)
    return (*_SMALL, *(_LARGE_SHARED if nranks > gpus else _LARGE))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.split("\n", 1)[0]
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    add("--ranks", type=tuple_of(positive), default=(1, 2, 4), help="of each run (default: 1,2,4)")
    add("--quick", action="store_true", help="little of everything, to see that it works")
    add("--repeats", type=int, help="samples of each way (default: 7, quick: 3)")
    add("--total", type=float, default=430.0, help="seconds for all (default: %(default)g)")
    add("--out", type=Path, help="folder (default: docs/results/..., build/results/... for cpu)")
    add("--no-plots", dest="plots", action="store_false", help="only the tables and the figures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
