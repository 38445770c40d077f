"""Times every collective of pynccl compared with torch.distributed (gloo on CPUs, nccl on GPUs).

    python -m benchmarks.collectives --ranks 2

Each of the ranks, which are processes, has a communicator of pynccl and a process group of torch,
and runs both on the same buffers. For each collective and size both results are checked; then the
libraries are timed in turns, a barrier before each sample. A sample is the mean over as many
operations as fill its time, and the maximum over the ranks; the table shows the median of the
samples, bandwidths in GB/s as nccl-tests defines them, how many times pynccl's time the other
library takes, and the ninth decile of pynccl's samples over their median. JSON and a plot go to a
folder. A wrong result ends the run.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import report, timing
from benchmarks.machine import Machine, describe, inspect
from benchmarks.operations import DTYPES, Buffers, Row, exact_row
from benchmarks.options import positive, size, tuple_of
from benchmarks.ranks import BenchmarkError, run_ranks
from benchmarks.timing import Figure
from pynccl.libraries import default_provider
from pynccl.testing import Rank
from pynccl.tools.trace.bandwidth import BUS_FACTORS, bandwidth

if TYPE_CHECKING:
    from benchmarks.libraries import Library
    from benchmarks.world import Settings, World

__all__ = ["main", "measure"]

_OUT = Path(__file__).parent / "out"
_K, _M = 2**10, 2**20
_SILENCE = 180.0  # seconds without a row


class _Effort(NamedTuple):
    """How much is measured: the sizes in bytes, and the samples, each of so many seconds."""

    sizes: tuple[int, ...]
    repeats: int
    budget: float


_FULL_SIZES = (4, 256, 4 * _K, 16 * _K, 64 * _K, 256 * _K, _M, 4 * _M, 16 * _M, 64 * _M)
_FULL = _Effort(_FULL_SIZES, 11, 0.05)
_DEFAULT = _Effort((4, 4 * _K, 64 * _K, _M, 16 * _M), 7, 0.02)
_QUICK = _Effort((4, 64 * _K, 4 * _M), 5, 0.02)


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    rows: list[list[Figure]] = []
    columns = ("seconds", *(["host_seconds"] if options.device == "cuda" else []), "busbw")
    table = report.Table()
    title = ""
    try:
        print(f"starting {options.ranks} ranks ...", flush=True)
        for message in run_ranks(options.ranks, _rank, (options,), _SILENCE):
            match message:
                case Machine() as machine, [*libraries]:
                    title = f"{options.ranks} ranks, {options.dtype}, on {describe(machine)}"
                    print(title, flush=True)
                case str():
                    print(f"note: {message}", flush=True)
                case list():
                    rows.append(message)
                    table.add(report.line(message, libraries, libraries[1:], columns))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report.summary(rows, "pynccl", libraries[-1]) or f"{len(rows)} rows, not compared")
    path = options.out / f"collectives-{options.device}-{options.ranks}ranks-{options.dtype}.json"
    found = [figure for row in rows for figure in row]
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    report.write_json(path, found, machine=dataclasses.asdict(machine), settings=settings)
    from benchmarks.plot import lines  # takes a second to import

    lines(path.with_suffix(".png"), found, title)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives",
        description="Times pynccl compared with torch.distributed.",
    )
    add = parser.add_argument
    add("--ranks", type=positive, default=2, help="processes (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where a GPU can be used")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--full", action="store_true", help="ten sizes and more, longer samples")
    choice.add_argument(
        "--quick", action="store_true", help="three sizes, less and shorter samples"
    )
    add("--sizes", type=tuple_of(size), help="bytes, as 4,64K,16M (default: five, 4 to 16M)")
    add(
        "--collectives",
        type=tuple_of(str, BUS_FACTORS),
        default=tuple(BUS_FACTORS),
        help=f"of {','.join(BUS_FACTORS)} (default: all)",
    )
    add("--dtype", choices=sorted(DTYPES), default="float32", help="default: %(default)s")
    add("--repeats", type=positive, help="samples of each library (default: 7)")
    add("--out", type=Path, default=_OUT, help="folder for JSON and plot (default: %(default)s)")
    options = parser.parse_args()
    effort = _FULL if options.full else _QUICK if options.quick else _DEFAULT
    options.device = options.device or ("cuda" if default_provider() == "cuda" else "cpu")
    options.sizes = options.sizes or effort.sizes
    options.repeats = options.repeats or effort.repeats
    options.budget = effort.budget
    return options


def _rank(rank: Rank, options: argparse.Namespace) -> None:
    from benchmarks.world import Settings, World  # torch, which only the ranks need

    names = ("device", "dtype", "collectives", "sizes", "repeats", "budget")
    settings = Settings(**{name: getattr(options, name) for name in names})
    world = World(rank, settings)
    say = rank.report if rank.rank == 0 else lambda _: None
    say((inspect(world.provider), [library.name for library in world.libraries]))
    for found in measure(world, settings):
        say(found)
    world.close()


def measure(world: World, settings: Settings) -> Iterator[str | list[Figure]]:
    """Measure every collective and size in an existing world, on all ranks.

    Yields:
        Notes, and the figures of the libraries for each row.

    Raises:
        BenchmarkError: a result was wrong.
    """
    if world.refusal:
        yield world.refusal
    # A collection inside a sample would be measured, on every rank that waits for this one.
    gc.disable()
    gc.freeze()
    stop = time.monotonic() + settings.seconds
    rows = [
        exact_row(collective, settings.dtype, world.nranks, nbytes)
        for collective in settings.collectives
        for nbytes in settings.sizes
    ]
    missing: set[tuple[str, str]] = set()  # what a library lacks of the collectives
    for number, row in enumerate(rows := list(dict.fromkeys(rows))):
        if world.maximum([float(time.monotonic() > stop)]) != [0.0]:
            left = ", ".join(f"{one.operation} of {one.nbytes}" for one in rows[number:])
            yield f"not measured, the time was up: {left} bytes"
            return
        gc.collect()
        buffers = Buffers(row, world.rank, in_place=True, device=world.device)
        libraries = []
        for library in world.libraries:
            if (library.name, row.operation) in missing:
                continue
            if reason := _check(world, library, buffers):
                missing.add((library.name, row.operation))
                yield f"{row.operation} by {library.name}: {reason}"
            else:
                libraries.append(library)
        buffers.clear()
        yield _figures(world, settings, libraries, buffers)


def _check(world: World, library: Library, buffers: Buffers) -> str:
    """Run a library once and compare the result; why it cannot, or ''."""
    reason, row = "", buffers.row
    try:
        buffers.fill()
        call = library.call(buffers)
        assert call
        call()
        world.synchronize()
    except Exception as error:  # of another library; it is said, and the others are measured
        if library is world.pynccl:
            raise
        reason = str(error) or type(error).__name__
    if not (reason := world.agree(reason)) and (wrong := buffers.wrong()):
        raise BenchmarkError(f"{row.operation} of {row.nbytes} bytes by {library.name}: {wrong}")
    return reason


def _figures(
    world: World, settings: Settings, libraries: list[Library], buffers: Buffers
) -> list[Figure]:
    row: Row = buffers.row
    calls = {library.name: library.call(buffers) for library in libraries}
    measured = timing.samples(
        {name: world.timer(call) for name, call in calls.items() if call},
        settings.repeats,
        settings.budget,
        world.clock.limit,
    )
    torch = world.torch.name if world.torch else ""
    found = timing.figures(measured, lambda _: torch, collective=row.operation, bytes=row.nbytes)
    for figure in found:
        widths = bandwidth(row.operation, row.nbytes, figure["seconds"], row.nranks)
        figure.update(widths._asdict())
    return found


if __name__ == "__main__":
    sys.exit(main())
