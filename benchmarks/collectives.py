"""Times every collective of pynccl compared with torch.distributed (gloo on CPUs, nccl on GPUs).

    python -m benchmarks.collectives --ranks 2

Each of the ranks, which are processes, has a communicator of pynccl and a process group of torch,
and runs both on the same buffers. For each collective and size both results are checked; then the
libraries are timed in turns, a barrier before each sample. A sample is the mean over as many
operations as fill its time, and the maximum over the ranks; the table shows the median of the
samples and bandwidths in GB/s as nccl-tests defines them. JSON and a plot go to a folder. A wrong
result ends the run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks import report
from benchmarks.machine import Machine
from benchmarks.options import positive, size, tuple_of
from benchmarks.ranks import BenchmarkError, run_ranks
from benchmarks.results import DTYPES, Note, Plan, Row, Settings
from pynccl.libraries import default_provider
from pynccl.testing import Rank
from pynccl.tools.trace.bandwidth import BUS_FACTORS

__all__ = ["main"]

_OUT = Path(__file__).parent / "out"
_KIB, _MIB = 2**10, 2**20

_FULL_SIZES = (
    4,
    256,
    4 * _KIB,
    16 * _KIB,
    64 * _KIB,
    256 * _KIB,
    _MIB,
    4 * _MIB,
    16 * _MIB,
    64 * _MIB,
)
_DEFAULT_SIZES = (4, 4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB)
_QUICK_SIZES = (4, 64 * _KIB, 4 * _MIB)


class _Effort(NamedTuple):
    """How much is measured: the sizes in bytes, and the samples, each of so many seconds."""

    sizes: tuple[int, ...]
    repeats: int
    budget: float


_FULL = _Effort(_FULL_SIZES, 11, 0.05)
_DEFAULT = _Effort(_DEFAULT_SIZES, 7, 0.02)
_QUICK = _Effort(_QUICK_SIZES, 5, 0.02)
_SILENCE = 180.0  # seconds without a row


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    settings = _settings(options)
    try:
        machine, rows = _measure(settings)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _write(options.out, settings, machine, rows)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives",
        description="Times pynccl compared with torch.distributed.",
    )
    add = parser.add_argument
    add("--ranks", type=positive, default=2, help="processes (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where a GPU can be used")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--full", action="store_true", help="ten sizes and more, longer samples")
    effort.add_argument(
        "--quick", action="store_true", help="three sizes, less and shorter samples"
    )
    add("--sizes", type=tuple_of(size), help="bytes, as 4,64K,16M (default: five, 4 to 16M)")
    add(
        "--collectives",
        type=tuple_of(str, BUS_FACTORS),
        help=f"of {','.join(BUS_FACTORS)} (default: all)",
    )
    add("--dtype", choices=DTYPES, default="float32", help="default: %(default)s")
    add("--repeats", type=positive, help="samples of each library (default: 7)")
    add("--out", type=Path, default=_OUT, help="folder for JSON and plot (default: %(default)s)")
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> Settings:
    effort = _FULL if options.full else _QUICK if options.quick else _DEFAULT
    return Settings(
        nranks=options.ranks,
        device=options.device or ("cuda" if default_provider() == "cuda" else "cpu"),
        dtype=options.dtype,
        collectives=options.collectives or tuple(BUS_FACTORS),
        sizes=options.sizes or effort.sizes,
        repeats=options.repeats or effort.repeats,
        budget=effort.budget,
    )


def _rank(rank: Rank, settings: Settings) -> None:
    from benchmarks.runner import run  # torch, which only the ranks need

    run(rank, settings)


def _measure(settings: Settings) -> tuple[Machine, list[Row]]:
    print(f"starting {settings.nranks} ranks ...", flush=True)
    messages = run_ranks(settings.nranks, _rank, (settings,), _SILENCE)
    plan = next(messages)
    assert isinstance(plan, Plan)
    print(report.describe(plan.machine, settings), flush=True)
    rows: list[Row] = []
    print(report.heading(plan, settings.device), flush=True)
    for message in messages:
        match message:
            case Row():
                rows.append(message)
                print(report.line(message, settings.device), flush=True)
            case Note(text):
                print(f"note: {text}", flush=True)
    return plan.machine, rows


def _write(folder: Path, settings: Settings, machine: Machine, rows: list[Row]) -> None:
    from benchmarks.plot import collectives  # takes a second to import

    print(report.summary(rows))
    stem = f"collectives-{settings.device}-{settings.nranks}ranks-{settings.dtype}"
    about = dataclasses.asdict(settings)
    del about["seconds"]
    content = [{**dataclasses.asdict(row), "times_faster": row.times_faster} for row in rows]
    path = folder / f"{stem}.json"
    report.write_json(path, content, settings=about, machine=dataclasses.asdict(machine))
    figures = [figure for row in rows for figure in row.figures()]
    collectives(path.with_suffix(".png"), figures, report.describe(machine, settings))


if __name__ == "__main__":
    sys.exit(main())
