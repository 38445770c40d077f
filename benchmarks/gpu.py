"""Measures pynccl compared with torch.distributed on the GPUs of this machine.

    python -m benchmarks.gpu                   # 1, 2 and 4 ranks, to docs/results
    python -m benchmarks.gpu --device cpu      # the same over hostnccl and gloo, to build/results
    python -m benchmarks.gpu --sections kernels,lab

There is one run for each number of ranks, which are processes. It measures the host time of a call
and NCCL's share of it, a sequence of operations called and replayed as a CUDA graph, a matrix
product beside an all_reduce, and every collective at several sizes. Each section writes a JSON file
and a table when it has completed or failed. Calls and collectives are also measured with `import
pynccl as dist`, pynccl's backend of torch.distributed, and torch's other NCCL engines. The report
lists what could not be measured, with the reason. Results are checked before they are timed, and
libraries take turns. When the time is up, the figures so far are written.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import gpu_sections, report
from benchmarks.machine import ROOT, Machine, inspect, rows, scrub, slug
from benchmarks.ranks import BenchmarkError, run_ranks
from benchmarks.timing import Figure
from benchmarks.world import Settings, World
from pynccl.testing import Rank
from pynccl.tools.text import list_of, one_of, positive

__all__ = ["SECTIONS", "Done", "Section", "Start", "main"]

_SILENCE = 90.0  # seconds without a report
_K, _M = 1 << 10, 1 << 20
_SMALL = (8, 64, 512, 4 * _K, 16 * _K, 64 * _K)
_LARGE = (_M, 16 * _M, 64 * _M, 256 * _M)
_LARGE_SHARED = (_M, 16 * _M)
_LARGE_ON_CPUS = (_M, 4 * _M)
_QUICK = (8, 4 * _K, _M)

# In their order.
SECTIONS = {
    "calls": "The host's time in one all_reduce",
    "kernels": "all_reduce by a kernel over pynccl/device.h",
    "lab": "A matrix product at the same time, by the overlap lab",
    "collectives": "Collectives",
    "sequences": "Operations in sequence, the time of one",
}


class Start(NamedTuple):
    """The report of a world that has started.

    Attributes:
        gpus: the number of GPUs of its ranks.
        engine: the engine of torch.distributed, the baseline.
        absent: why libraries cannot be measured, by name.
    """

    gpus: int
    engine: str
    absent: dict[str, str]


class Done(NamedTuple):
    """The next section is complete, after a number of seconds."""

    seconds: float


@dataclasses.dataclass
class Section:
    """The results of one section in one world, for its two files.

    Attributes:
        name: a key of SECTIONS.
        nranks: the size of the world.
        machine: the machine.
        start: the report of the world; None until it has started.
        seconds: its duration; 0 until it is complete.
        figures: the figures; a repeated measurement replaces the earlier one.
        notes: notes for the reader.
        failures: the errors that ended it early.
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
        """Store a report of the ranks: a note, a figure, or the end."""
        match message:
            case str():
                self.notes.append(message)
            case Done(seconds):
                self.seconds = seconds
            case dict():
                key = tuple(value for value in message.values() if isinstance(value, str | int))
                self.figures[key] = message

    def write(self, folder: Path) -> None:
        """Write ``<nranks>ranks-<name>.json`` with every sample, and ``.md`` with the table."""
        figures = list(self.figures.values())
        about = dataclasses.asdict(self)
        del about["figures"]
        about["start"] = self.start and self.start._asdict()
        path = folder / f"{self.nranks}ranks-{self.name}.json"
        report.write_json(path, figures, **about)
        path.with_suffix(".md").write_text(scrub("\n\n".join(self._parts())) + "\n")

    def _parts(self) -> Iterator[str]:
        gpus = self.start.gpus if self.start else len(self.machine.gpus)
        shares = 0 < gpus < self.nranks
        where = self.machine.gpus[0] if self.machine.gpus else "CPUs"
        title = f"# {SECTIONS[self.name]}: {self.nranks} rank{'s' if self.nranks > 1 else ''}"
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
    """Run the benchmark, and return the exit status."""
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
    """Run one world. If a section fails, run another world for the remaining sections.

    Returns:
        Whether any section failed.
    """
    print(f"{nranks} ranks, {seconds:.0f} s", flush=True)
    deadline = time.monotonic() + seconds
    left = [Section(name, nranks, machine) for name in options.sections]
    others, failed = True, False
    while left:
        try:
            _run(left, options, deadline=deadline, others=others)
            return failed
        except BenchmarkError as error:
            reason = str(error)
        failed = True
        print(f"  error: {reason}", file=sys.stderr, flush=True)
        left = [section for section in left if not section.seconds] or left[-1:]
        left[0].failures.append(reason)
        left[0].write(options.out)
        if time.monotonic() > deadline:
            break
        if others and not left[0].start:
            others = False
            for section in left:
                section.take("the ranks did not come up: once more without the others")
        else:
            left = left[1:]
    return failed


def _run(
    sections: list[Section], options: argparse.Namespace, *, deadline: float, others: bool
) -> None:
    """Run a world, and write the files of each completed section."""
    nranks, gpus = sections[0].nranks, len(sections[0].machine.gpus)
    settings = Settings(
        device=options.device,
        sizes=_sizes(options, nranks, gpus),
        repeats=options.repeats or (3 if options.quick else 7),
        budget=0.002 if options.quick else 0.01,
        seconds=(deadline - time.monotonic()) * 0.6,
        others=others,
        unbuilt=options.unbuilt,
    )
    left = iter(sections)
    current = next(left)
    names = [section.name for section in sections]
    for message in run_ranks(nranks, _rank, (settings, names, options.quick), _SILENCE):
        if isinstance(message, Start):
            for section in sections:
                section.start = message
            print(f"  up, on {message.gpus or 'no'} GPU", flush=True)
        current.take(message)
        if isinstance(message, Done):
            current.write(options.out)
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


def _rank(rank: Rank, settings: Settings, names: list[str], quick: bool) -> None:
    """Measure the sections in one world; rank 0 reports the figures as they are found."""
    torch.manual_seed(rank.rank)
    world = World(rank, settings)
    say = rank.report if rank.rank == 0 else lambda _: None
    gpus = torch.cuda.device_count() if world.device.type == "cuda" else 0
    say(Start(gpus, world.engine, world.absent))
    for name in names:
        started = time.monotonic()
        for found in _found(name, world, settings, quick):
            say(found)
        gc.collect()  # frees graphs before the communicators that they use
        say(Done(time.monotonic() - started))
    world.close()


def _found(name: str, world: World, settings: Settings, quick: bool) -> Iterable[object]:
    """Measure one section, and yield notes and figures."""
    repeats = settings.repeats
    replays = 1 if world.shares else 2 if quick else 10
    side, nbytes = (128, 1 << 18) if quick else (512, 16 << 20)
    if world.device.type == "cuda":
        side, nbytes = (512, 1 << 20) if quick else (4096, (16 if world.shares else 256) << 20)
    match name:
        case "calls":
            return gpu_sections.calls(world, repeats, 20 if quick else None)
        case "kernels":
            return gpu_sections.kernels(world, repeats, settings.budget)
        case "lab":
            sizes = (nbytes,) if quick else (1 << 16, nbytes)
            return gpu_sections.sweep(world, repeats, sizes, side)
        case "collectives":
            return gpu_sections.collectives(world, settings)
    return gpu_sections.sequences(world, repeats, replays)


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
    add("--ranks", type=list_of(positive), default=(1, 2, 4), help="of each run (default: 1,2,4)")
    names = tuple(SECTIONS)
    add("--sections", type=list_of(one_of(names)), default=names, help=f"of {','.join(names)}")
    add("--quick", action="store_true", help="little of everything, to see that it works")
    add("--repeats", type=int, help="samples of each way (default: 7, quick: 3)")
    add("--total", type=float, default=430.0, help="seconds for all (default: %(default)g)")
    add("--out", type=Path, help="folder (default: docs/results/..., build/results/... for cpu)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
