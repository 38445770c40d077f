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
import dataclasses
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from benchmarks import callgrind, calls_rows, report
from benchmarks.calls_rows import ALL_REDUCE, ASYNC, EXCHANGE, LOOP, Row
from benchmarks.machine import cpu
from tools import noop

__all__ = ["Result", "main", "of_fake", "of_traces", "table"]

_OUT = Path(__file__).parent / "out"
_BASELINES = {
    ALL_REDUCE: "cupy.cuda.nccl",
    ASYNC: "torch.distributed",
    EXCHANGE: "torch.distributed",
}
_CALL = "pynccl Communicator, tensor"
_ADDED = {"a recording is on": 30, "a trace is on": 150}  # nanoseconds at most, of one call
_BACKEND, _FAKE = "torch.distributed pynccl", "torch.distributed fake"
_PACKAGES = ("pynccl", "torch", "cupy-cuda13x", "nccl4py")
_WARM_UP = 200  # calls
_FOLDER = "PYNCCL_BENCH_NCCL"  # set where the search path is set


@dataclasses.dataclass(frozen=True)
class Result:
    """A row's figures.

    Attributes:
        seconds: of one call, the least of the samples.
        instructions: of one call without the loop, where they were counted.
    """

    name: str
    operation: str
    seconds: float
    samples: tuple[float, ...]
    instructions: float | None


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    with _nccl_in_search_path():
        rows, missing = calls_rows.rows()
        print(f"{cpu()}\n{', '.join(_versions())}\n")
        samples = _measure(rows, options.repeats, options.budget)
        counts = _count(options.instructions)
    results = [
        Result(row.name, row.operation, min(times), tuple(times), counts.get(row.name))
        for row, times in zip(rows, samples, strict=True)
    ]
    print(table(results))
    for line in of_fake(results) + of_traces(results):
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


def _measure(rows: list[Row], repeats: int, budget: float) -> list[list[float]]:
    """Samples of each row, in seconds of one call."""
    numbers = []
    for row in rows:
        row.timer.timeit(100)
        number = max(1, int(budget / (row.timer.timeit(100) / 100)))
        numbers.append(min(number, row.most))
    samples: list[list[float]] = [[] for _ in rows]
    for _ in range(repeats):
        for row, number, times in zip(rows, numbers, samples, strict=True):
            with row.around():
                if number == row.most:  # a short sample: the caches are those of another row
                    row.timer.timeit(_WARM_UP)
                times.append(row.timer.timeit(number) / number)
    return samples


def _count(wanted: bool) -> dict[str, float]:
    if not wanted:
        return {}
    if not callgrind.available():
        print("instructions are not counted: valgrind is not installed\n")
        return {}
    return callgrind.count()


def table(results: list[Result]) -> str:
    """Lines of a Markdown table: nanoseconds, the ratio to the first peer, instructions."""
    lines = [
        "| call | ns | ratio | instructions |",
        "|---|---:|---:|---:|",
    ]
    for operation in (LOOP, ALL_REDUCE, ASYNC, EXCHANGE):
        chosen = [result for result in results if result.operation == operation]
        baseline = next(
            (r.seconds for r in chosen if r.name.startswith(_BASELINES.get(operation, " "))), None
        )
        if operation != LOOP:
            against = f"of {_BASELINES[operation]}" if baseline else ""
            lines.append(f"| **{operation}** | | {against} | |")
        for result in chosen:
            ratio = f"{result.seconds / baseline:.3g}" if baseline else ""
            count = "" if result.instructions is None else f"{result.instructions:.0f}"
            lines.append(f"| {result.name} | {result.seconds * 1e9:.0f} | {ratio} | {count} |")
    return "\n".join(lines)


def of_fake(results: list[Result]) -> list[str]:
    """Lines with the ratio of pynccl's backend of torch.distributed to torch's fake one.

    Both are called through the same functions, and the fake one does nothing.
    """
    seconds = {result.name: result.seconds for result in results}
    lines = []
    for result in results:
        if not result.name.startswith(_BACKEND):
            continue
        call = result.name.removeprefix(_BACKEND)
        if fake := seconds.get(_FAKE + call):
            lines.append(f"backend pynccl / fake,{call}: {result.seconds / fake:.2f}")
    return lines


def of_traces(results: list[Result]) -> list[str]:
    """Lines with what a recording and a trace add to a call, and the bounds of docs/trace.md."""
    seconds = {result.name: result.seconds for result in results}
    lines = []
    for name, most in _ADDED.items():
        if (on := seconds.get(f"{_CALL}, {name}")) is not None:
            added = (on - seconds[_CALL]) * 1e9
            verdict = "" if added <= most else ": TOO MUCH"
            lines.append(f"{name}: {added:.0f} ns are added, at most {most} may be{verdict}")
    return lines


def _write(folder: Path, results: list[Result], missing: dict[str, str]) -> None:
    from benchmarks.plot import bars  # takes a second to import

    rows = [dataclasses.asdict(result) for result in results]
    path = folder / "calls.json"
    report.write_json(path, rows, machine=cpu(), versions=_versions(), missing=missing)
    bars(
        path.with_suffix(".png"),
        [(r.name, r.operation, r.seconds) for r in results if r.operation != LOOP],
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
