"""Times one call from Python to NCCL's C function and back, for pynccl and its peers.

    python -m benchmarks.calls --instructions

All libraries call the no-op NCCL, so only the binding is timed: parsing, checks, the tensor, the
GIL. They are in one process and take turns. A sample is the mean over as many calls as fit into its
time. The table shows the minimum of the samples, because disturbances only lengthen a call. The
loop around the call, measured as a row, is part of every figure. A missing library is reported with
the command that installs it. The table is printed, JSON and a plot are written to a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import callgrind, calls_rows, report, timing
from benchmarks.calls_rows import ALL_REDUCE, ASYNC, EXCHANGE, LOOP, PROFILER, Row
from benchmarks.machine import describe, inspect
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
_ADDED = {"a recording is on": 30, "a trace is on": 150}  # maximum nanoseconds per call
_WARM_UP = 200  # calls
_FOLDER = "PYNCCL_BENCH_NCCL"  # set when the search path is set


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    with _nccl_in_search_path():
        rows, missing = calls_rows.rows()
        machine = describe(inspect(None))
        print(f"{machine}\n")
        samples = _measure(rows, options.repeats, options.budget)
        counts = _count(options.instructions)
    results = [
        {
            "operation": row.operation,
            "library": row.name,
            "seconds": min(samples[row.name]),
            "samples": samples[row.name],
            "instructions": counts.get(row.name),  # of one call, without the loop
        }
        for row in rows
    ]
    print(table(results))
    for line in of_traces(results):
        print(line)
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}")
    _write(options.out, results, machine, missing)
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
    """Make the no-op library the libnccl.so.2 of all libraries that link it.

    The search path is read when a process starts, so this process restarts itself.
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
    """Return the samples of each row, in seconds per call."""
    timers = {}
    for row in rows:
        row.timer.timeit(100)
        number = max(1, int(budget / (row.timer.timeit(100) / 100)))
        timers[row.name] = partial(_sample, row, min(number, row.most))
    measured = timing.in_turns(timers, repeats)
    return {name: [each.seconds for each in samples] for name, samples in measured.items()}


def _sample(row: Row, number: int) -> timing.Elapsed:
    with row.around():
        if number == row.most:  # a short sample: the caches still hold another row's data
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
    """Return a table in Markdown: nanoseconds, the ratio to the first peer, instructions."""
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
    """Compare the cost that a recording and a trace add to a call with docs/trace.md."""
    seconds = {result["library"]: result["seconds"] for result in results}
    lines = []
    for name, most in _ADDED.items():
        if (on := seconds.get(f"{_CALL}, {name}")) is not None:
            added = (on - seconds[_CALL]) * 1e9
            verdict = "" if added <= most else ": TOO MUCH"
            lines.append(f"{name}: {added:.0f} ns are added, at most {most} may be{verdict}")
    return lines


def _write(folder: Path, results: list[Figure], machine: str, missing: dict[str, str]) -> None:
    from benchmarks.plot import bars  # takes a second to import

    path = folder / "calls.json"
    report.write_json(path, results, machine=machine, missing=missing)
    bars(
        path.with_suffix(".png"),
        [(r["library"], r["operation"], r["seconds"]) for r in results if r["operation"] != LOOP],
        machine,
    )


if __name__ == "__main__":
    sys.exit(main())
