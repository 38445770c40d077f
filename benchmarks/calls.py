"""Times one call from Python to NCCL's C function and back, for pynccl and its peers.

    python -m benchmarks.calls --instructions

All libraries call the no-op NCCL, so what is timed is the binding: parsing, checks, the tensor, the
GIL. They are in one process and take turns; a sample is the mean over as many calls as fill its
time, and the table shows the least of the samples, because a disturbance only makes a call longer.
The loop around the call, a row of its own, is part of every figure. A library that is not installed
is left out with a line that says how to install it. The table is printed; JSON and a plot go to a
folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

from benchmarks import callgrind, calls_rows, report, timing
from benchmarks.calls_rows import ALL_REDUCE, ASYNC, EXCHANGE, LOOP, PROFILER, Row
from benchmarks.machine import cpu
from benchmarks.timing import Figure
from tools import noop

__all__ = ["main", "of_traces", "table"]

_OUT = Path(__file__).parent / "out"
_BASELINES = {
    ALL_REDUCE: "cupy.cuda.nccl",
    ASYNC: "torch.distributed",
    EXCHANGE: "torch.distributed",
}
_CALL = "pynccl Communicator, tensor"
_ADDED = {"a recording is on": 30, "a trace is on": 150}  # nanoseconds at most, of one call
_PACKAGES = ("pynccl", "torch", "cupy-cuda13x", "nccl4py")
_WARM_UP = 200  # calls
_FOLDER = "PYNCCL_BENCH_NCCL"  # set where the search path is set


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    with _nccl_in_search_path():
        rows, missing = calls_rows.rows()
        print(f"{cpu()}\n{', '.join(_versions())}\n")
        samples = _measure(rows, options.repeats, options.budget)
        counts = _count(options.instructions)
    results = [
        {
            "operation": row.operation,
            "library": row.name,
            "seconds": min(samples[row.name]),
            "samples": samples[row.name],
            "instructions": counts.get(row.name),  # of one call without the loop
        }
        for row in rows
    ]
    print(table(results))
    for line in of_traces(results):
        print(line)
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}")
    _write(options.out, results, missing)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls",
        description="Times one call from Python to NCCL, for pynccl and its peers.",
    )
    add = parser.add_argument
    add("--instructions", action="store_true", help="count them as well (needs valgrind)")
    add("--repeats", type=int, default=200, help="samples of each call (default: %(default)s)")
    add("--budget", type=float, default=2e-3, help="seconds of a sample (default: %(default)s)")
    add("--out", type=Path, default=_OUT, help="folder for JSON and plot (default: %(default)s)")
    return parser.parse_args()


@contextlib.contextmanager
def _nccl_in_search_path() -> Iterator[None]:
    """Have the no-op library found as libnccl.so.2 by all libraries that link it.

    The search path is read when a process starts, so this one starts again.
    """
    if folder := os.environ.get(_FOLDER):
        try:
            yield
        finally:
            Path(folder, "libnccl.so.2").unlink()
            Path(folder).rmdir()
        return
    folder = tempfile.mkdtemp(prefix="pynccl-bench-")
    Path(folder, "libnccl.so.2").symlink_to(noop.library())
    path = os.pathsep.join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, _FOLDER: folder, "LD_LIBRARY_PATH": path}
    os.execve(sys.executable, sys.orig_argv, environment)


def _measure(rows: list[Row], repeats: int, budget: float) -> dict[str, list[float]]:
    """Samples of each row, in seconds of one call."""
    timers = {}
    for row in rows:
        row.timer.timeit(100)
        number = max(1, int(budget / (row.timer.timeit(100) / 100)))
        timers[row.name] = partial(_sample, row, min(number, row.most))
    measured = timing.in_turns(timers, repeats)
    return {name: [each.seconds for each in samples] for name, samples in measured.items()}


def _sample(row: Row, number: int) -> timing.Elapsed:
    with row.around():
        if number == row.most:  # a short sample: the caches are those of another row
            row.timer.timeit(_WARM_UP)
        return timing.Elapsed(row.timer.timeit(number) / number)


def _count(wanted: bool) -> dict[str, float]:
    if not wanted:
        return {}
    if not callgrind.available():
        print("instructions are not counted: valgrind is not installed\n")
        return {}
    return callgrind.count()


def table(results: list[Figure]) -> str:
    """A table in Markdown: nanoseconds, the ratio to the first peer, instructions."""
    rows: list[Figure] = []
    for operation in (LOOP, ALL_REDUCE, ASYNC, EXCHANGE, PROFILER):
        chosen = [result for result in results if result["operation"] == operation]
        peer = _BASELINES.get(operation)
        baseline = next(
            (r["seconds"] for r in chosen if peer and r["library"].startswith(peer)), None
        )
        if operation != LOOP and chosen:
            rows.append({"call": f"**{operation}**", "ratio": f"of {peer}" if baseline else ""})
        rows += [
            {
                "call": result["library"],
                "ns": f"{result['seconds'] * 1e9:.0f}",
                "ratio": f"{result['seconds'] / baseline:.3g}" if baseline else None,
                "instructions": result["instructions"] and f"{result['instructions']:.0f}",
            }
            for result in chosen
        ]
    return report.table(rows)


def of_traces(results: list[Figure]) -> list[str]:
    """Lines with what a recording and a trace add to a call, and the bounds of docs/trace.md."""
    seconds = {result["library"]: result["seconds"] for result in results}
    lines = []
    for name, most in _ADDED.items():
        if (on := seconds.get(f"{_CALL}, {name}")) is not None:
            added = (on - seconds[_CALL]) * 1e9
            verdict = "" if added <= most else ": TOO MUCH"
            lines.append(f"{name}: {added:.0f} ns are added, at most {most} may be{verdict}")
    return lines


def _write(folder: Path, results: list[Figure], missing: dict[str, str]) -> None:
    from benchmarks.plot import bars  # takes a second to import

    path = folder / "calls.json"
    report.write_json(path, results, machine=cpu(), versions=_versions(), missing=missing)
    bars(
        path.with_suffix(".png"),
        [(r["library"], r["operation"], r["seconds"]) for r in results if r["operation"] != LOOP],
        f"{cpu()}\n{', '.join(_versions())}",
    )


def _versions() -> list[str]:
    versions = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    return versions


if __name__ == "__main__":
    sys.exit(main())
