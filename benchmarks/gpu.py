"""Measures pynccl compared with torch.distributed on the GPUs of this machine, and writes a report.

    python -m benchmarks.gpu                   # 1, 2 and 4 ranks, to docs/results
    python -m benchmarks.gpu --device cpu      # the same over hostnccl and gloo, to build/results

One run for each number of ranks, which are processes. In each: the host's time in one call and
what of it is NCCL's own, a sequence of operations called and replayed as a CUDA graph, a matrix
product beside an all_reduce, and every collective over sizes. The calls and the collectives are
also those of `import pynccl as dist`, of pynccl's backend of torch.distributed, and of the other
NCCL engines that torch has; what cannot be measured is in the report, with the reason. Results are
checked before they are timed, libraries take turns, and what was measured when the time is up is in
the report.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import metrics
from benchmarks.gpu_figures import SECTIONS, Agenda, Done, Start
from benchmarks.gpu_report import Findings
from benchmarks.machine import ROOT, inspect, scrub, slug
from benchmarks.ranks import BenchmarkError, run_ranks
from benchmarks.results import Note, Settings
from pynccl.testing import Rank

__all__ = ["main"]

_SILENCE = 90.0  # seconds without a report
_UP = "up"  # beside the sections that are done
# What is given up first where a sequence cannot be captured.
_FALLBACKS = ("torch, a CUDA graph", "pynccl, a CUDA graph")
_K, _M = 1 << 10, 1 << 20
_SMALL = (8, 64, 512, 4 * _K, 16 * _K, 64 * _K)
_LARGE = (_M, 16 * _M, 64 * _M, 256 * _M)
_LARGE_SHARED = (_M, 16 * _M)
_LARGE_ON_CPUS = (_M, 4 * _M)
_QUICK = (8, 4 * _K, _M)


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    provider = "cuda" if options.device == "cuda" else "host"
    findings = Findings(inspect(provider), options.device)
    options.unbuilt = _build_backend()
    stop = time.monotonic() + options.total
    for number, nranks in enumerate(options.ranks):
        left = stop - time.monotonic()
        share = left / sum(max(1, ranks) ** 0.5 for ranks in options.ranks[number:])
        _measure(findings, options, nranks, share * max(1, nranks) ** 0.5)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    out = options.out or ROOT / ("docs" if options.device == "cuda" else "build") / "results"
    stem = out / f"{date}-{slug(findings.machine)}-bench"
    seconds = options.total - (stop - time.monotonic())
    for path in findings.write(stem, date, seconds, plots=options.plots):
        print(f"wrote {path.name}")
    return 1 if findings.failures else 0


def _measure(findings: Findings, options: argparse.Namespace, nranks: int, seconds: float) -> None:
    """Run one world; where a section of it fails, another one for the sections that are left."""
    print(f"{nranks} ranks, {seconds:.0f} s", flush=True)
    deadline = time.monotonic() + seconds
    agenda: Agenda | None = Agenda(SECTIONS, frozenset(), options.quick)
    others = True
    while agenda:
        done: set[str] = set()
        try:
            _run(findings, options, nranks, agenda, deadline=deadline, others=others, done=done)
            return
        except BenchmarkError as error:
            reason = scrub(str(error))
        print(f"  error: {reason}", file=sys.stderr, flush=True)
        findings.fail(nranks, reason)
        if time.monotonic() > deadline:
            return
        if others and _UP not in done:
            others = False
            findings.take(nranks, Note("the ranks did not come up: once more without the others"))
            continue
        agenda = agenda.after(done, _FALLBACKS if options.device == "cuda" else ())


def _run(
    findings: Findings,
    options: argparse.Namespace,
    nranks: int,
    agenda: Agenda,
    *,
    deadline: float,
    others: bool,
    done: set[str],
) -> None:
    with tempfile.TemporaryDirectory(prefix="pynccl-bench-") as folder:
        settings = Settings(
            nranks=nranks,
            device=options.device,
            dtype="float32",
            collectives=tuple(metrics.BUS_FACTORS),
            sizes=_sizes(options, nranks, len(findings.machine.gpus)),
            repeats=options.repeats or (3 if options.quick else 7),
            budget=0.002 if options.quick else 0.01,
            folder=folder,
            seconds=(deadline - time.monotonic()) * 0.6,
            others=others,
            unbuilt=options.unbuilt,
        )
        for message in run_ranks(nranks, _rank, (settings, agenda), _SILENCE):
            findings.take(nranks, message)
            match message:
                case Start() as start:
                    done.add(_UP)
                    print(f"  up, on {start.gpus or 'no'} GPU", flush=True)
                case Done() as section:
                    done.add(section.section)
                    print(f"  {section.section}: {section.seconds:.1f} s", flush=True)
            if time.monotonic() > deadline:
                raise BenchmarkError("its time was over")


def _build_backend() -> str:
    """Build pynccl's backend, which takes longer than the ranks may; why that fails, or ''."""
    from pynccl.c10d.build import build

    try:
        build()
    except RuntimeError as error:
        return scrub(str(error))
    return ""


def _rank(rank: Rank, settings: Settings, agenda: Agenda) -> None:
    from benchmarks.gpu_rank import run  # torch, which only the ranks need

    run(rank.rank, rank.report, settings, agenda)


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
    add("--ranks", type=_numbers, default=(1, 2, 4), help="of each run (default: 1,2,4)")
    add("--quick", action="store_true", help="little of everything, to see that it works")
    add("--repeats", type=int, help="samples of each way (default: 7, quick: 3)")
    add("--total", type=float, default=430.0, help="seconds for all (default: %(default)g)")
    add("--out", type=Path, help="folder (default: docs/results, build/results for cpu)")
    add("--no-plots", dest="plots", action="store_false", help="only the tables and the figures")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a number below 1")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
