"""Times hostnccl and compares it with MPICH and gloo on the CPUs of this machine.

    python -m benchmarks.host --ranks 2,4 [--beside 2]

Every library has its own processes as ranks, which sleep while it is not their turn. For each
operation and size the results are checked; then the libraries are timed in turns, so that other
load of the machine affects all of them alike. A sample is the mean over as many calls as fill its
time, and the maximum over the ranks; the table shows the medians of the samples, of several passes
the median of these. "copy" is one memcpy of the same number of bytes between the samples: the floor
of every implementation that moves the bytes once. A table is printed; JSON and a plot go to a
folder. A wrong result ends the run. --beside starts CPU-bound processes, as on a laptop or a shared
machine. The last column is the ninth decile of hostnccl's samples over their median.

hostnccl is called through pynccl.raw, with addresses; "numpy" and "torch" are hostnccl through
pynccl.nccl, with arrays of these, which every call reads. MPICH needs the packages mpi4py and
mpich, gloo needs torch; what is missing is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks import host_report as report
from benchmarks.host_ranks import World, find_mpiexec
from benchmarks.host_rows import DTYPES, OPERATIONS, Row, exact_row
from benchmarks.options import positive, size, tuple_of
from benchmarks.ranks import BenchmarkError, busy_processes

__all__ = ["main"]

_OUT = Path(__file__).parent / "out"
_KIB, _MIB = 2**10, 2**20
_FULL_SIZES = (
    4,
    64,
    512,
    4 * _KIB,
    16 * _KIB,
    64 * _KIB,
    256 * _KIB,
    _MIB,
    4 * _MIB,
    16 * _MIB,
    64 * _MIB,
    256 * _MIB,
)
_QUICK_SIZES = (4, 4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB)
# Three of them are hostnccl: with addresses, and with the arrays of NumPy and torch.
_LIBRARIES = ("hostnccl", "numpy", "torch", "mpich", "gloo")
_NEEDS = {"torch": ("torch",), "mpich": ("mpi4py",), "gloo": ("torch",)}
_LONG = 0.1  # seconds of one call; longer ones get few samples


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    results: list[report.Result] = []
    try:
        with busy_processes(options.beside):
            for nranks in options.ranks:
                results += _Run(options, nranks).run()
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    report.write(options.out, results, options.beside)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host",
        description="Times hostnccl and compares it with MPICH and gloo.",
    )
    add = parser.add_argument
    add("--ranks", type=tuple_of(positive), default=(2, 4, 8), help="worlds (default: 2,4,8)")
    add(
        "--operations",
        type=tuple_of(str, OPERATIONS),
        default=list(OPERATIONS),
        help="default: all",
    )
    add("--dtypes", type=tuple_of(str, DTYPES), help="default: float32; full: all")
    add("--sizes", type=tuple_of(size), help="bytes, as 4,64K,16M (default: 4 to 256M)")
    add("--quick", action="store_true", help="five sizes, shorter samples")
    add("--full", action="store_true", help="all dtypes")
    add("--libraries", type=tuple_of(str, _LIBRARIES), help="default: all")
    add("--repeats", type=int, help="samples of each library (default: 9, quick: 5)")
    add("--passes", type=int, default=1, help="over all rows, minutes apart (default: 1)")
    add("--beside", type=int, default=0, help="CPU-bound processes beside the ranks (default: 0)")
    add("--bind", action="store_true", help="bind the ranks of every library to CPUs in turn")
    add("--budget", type=float, help="seconds of a sample (default: 0.02, quick: 0.005)")
    add("--out", type=Path, default=_OUT, help="folder for JSON and plot (default: %(default)s)")
    options = parser.parse_args()
    options.sizes = options.sizes or (_QUICK_SIZES if options.quick else _FULL_SIZES)
    options.dtypes = options.dtypes or (list(DTYPES) if options.full else ["float32"])
    options.repeats = options.repeats or (5 if options.quick else 9)
    options.budget = options.budget or (0.005 if options.quick else 0.02)
    options.libraries = _installed(options.libraries or _LIBRARIES)
    return options


def _installed(libraries: Iterable[str]) -> list[str]:
    there = []
    for name in libraries:
        missing = [part for part in _NEEDS.get(name, ()) if importlib.util.find_spec(part) is None]
        if name == "mpich" and not find_mpiexec():
            missing.append("mpiexec")
        if missing:
            print(f"note: {name} is left out, {missing[0]} is not installed")
        else:
            there.append(name)
    return there


class _Run:
    """The rows of one number of ranks."""

    def __init__(self, options: argparse.Namespace, nranks: int) -> None:
        self._options = options
        self._nranks = nranks

    def run(self) -> list[report.Result]:
        results: list[report.Result] = []
        with contextlib.ExitStack() as stack:
            worlds = []
            for library in self._options.libraries:
                worlds.append(stack.enter_context(self._world(library)))
            print(report.heading(self._nranks, {w.library: w.version for w in worlds}), flush=True)
            rows = self._rows()
            passes = self._options.passes
            earlier = [{row: self._measure(row, worlds) for row in rows} for _ in range(passes - 1)]
            for row in rows:
                last = self._measure(row, worlds)
                result = report.combine([*(one[row] for one in earlier), last])
                results.append(result)
                print(report.line(result), flush=True)
        print(report.summary(results), flush=True)
        return results

    def _world(self, library: str) -> World:
        return World(library, self._nranks, bind=self._options.bind)

    def _rows(self) -> list[Row]:
        rows: dict[Row, None] = {}
        for dtype in self._options.dtypes:
            for operation in self._options.operations:
                sizes = [4] if operation == "barrier" else self._options.sizes
                for nbytes in sizes:
                    if operation != "barrier" or dtype == self._options.dtypes[0]:
                        rows[exact_row(operation, dtype, self._nranks, nbytes)] = None
        return list(rows)

    def _measure(self, row: Row, worlds: list[World]) -> report.Result:
        able = [world for world in worlds if world.prepare(row)]
        plans = [self._calibrate(world) for world in able]
        floor = _Floor(row.nbytes, self._options.budget)
        samples: dict[str, list[float]] = {world.library: [] for world in able}
        samples["copy"] = []
        longest = max(seconds for _, seconds in plans)
        for _ in range(min(self._options.repeats, 3 if longest > _LONG else 1000)):
            samples["copy"].append(floor.sample())
            for world, (iterations, seconds) in zip(able, plans, strict=True):
                samples[world.library].append(world.sample(iterations, warm=seconds < _LONG))
        # One way of a round trip.
        share = 0.5 if row.operation == "ping_pong" else 1.0
        for name in samples.keys() - {"copy"}:
            samples[name] = [share * seconds for seconds in samples[name]]
        medians = {name: statistics.median(times) for name, times in samples.items()}
        deciles = {name: _ninth_decile(times) for name, times in samples.items()}
        return report.Result(row, medians, deciles)

    def _calibrate(self, world: World) -> tuple[int, float]:
        """Calls that fill a sample, and the seconds of one."""
        budget = self._options.budget
        iterations = 1
        while True:
            seconds = world.sample(iterations, warm=iterations == 1)
            if seconds * iterations >= budget / 4 or iterations >= 100_000:
                break
            iterations = min(100_000, max(2 * iterations, int(budget / 2 / seconds)))
        return max(1, min(100_000, round(budget / seconds))), seconds


def _ninth_decile(times: list[float]) -> float:
    return sorted(times)[len(times) * 9 // 10]


class _Floor:
    """One copy between two buffers of so many bytes."""

    def __init__(self, nbytes: int, budget: float) -> None:
        self._source = np.zeros(nbytes, np.uint8)
        self._target = np.ones(nbytes, np.uint8)
        self._source[:] = 1  # so that there are pages behind it
        self._iterations = 1
        self._iterations = max(1, min(100_000, int(budget / 4 / self.sample())))

    def sample(self) -> float:
        """Seconds of one copy on average."""
        source, target = self._source, self._target
        target[:] = source
        start = time.perf_counter()
        for _ in range(self._iterations):
            target[:] = source
        return (time.perf_counter() - start) / self._iterations


if __name__ == "__main__":
    sys.exit(main())
