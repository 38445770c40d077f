"""Times hostnccl and compares it with MPICH and gloo on the CPUs of this machine.

    python -m benchmarks.host --ranks 2,4 [--beside 2]

Each library has its own processes as ranks, which sleep while another library is timed. For each
operation and size, the results are checked. The libraries are then timed in turns, so other load of
the machine affects them equally. A sample is the mean over as many calls as fit into its time, and
the maximum over the ranks. The table shows the medians over the samples of all passes. "copy" is a
memcpy of the same number of bytes: the floor of every implementation that moves the bytes once. The
last column is the ninth decile of hostnccl's samples over their median. The table is printed, JSON
and a plot are written to a folder. A wrong result ends the run. --beside starts CPU-bound
processes, as on a laptop or a shared machine; its samples last for several time slices of the
scheduler, otherwise most of them would contain none and a few would contain nothing else. With
--compute, each rank computes before each call, as a program does, and times include it.

hostnccl is called through pynccl.raw, with addresses. "numpy" and "torch" are hostnccl through
pynccl.nccl, with arrays, which every call reads. MPICH needs the packages mpi4py and mpich, gloo
needs torch. Missing libraries are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report, timing
from benchmarks.host_ranks import World, find_mpiexec, world
from benchmarks.machine import describe, inspect
from benchmarks.operations import OPERATIONS, Row, exact_row
from benchmarks.ranks import BenchmarkError, busy_processes
from benchmarks.timing import Elapsed, Figure
from pynccl.tools.text import list_of, one_of, parse_size, positive

__all__ = ["main"]

_OUT = Path(__file__).parent / "out"
_K, _M = 2**10, 2**20
_SMALL = (4, 64, 512, 4 * _K, 16 * _K, 64 * _K, 256 * _K)
_FULL_SIZES = (*_SMALL, _M, 4 * _M, 16 * _M, 64 * _M, 256 * _M)
_QUICK_SIZES = (4, 4 * _K, 64 * _K, _M, 16 * _M)
_DTYPES = ("float32", "bfloat16", "float16", "int8")
_RENAMED = {"send_recv": "ring"}
_OPERATIONS = tuple(
    _RENAMED.get(name, name) for name in OPERATIONS if name not in ("gather", "scatter")
)
# The first three are hostnccl: with addresses, and with arrays of NumPy and torch.
_LIBRARIES = ("hostnccl", "numpy", "torch", "mpich", "gloo")
_COMPARED = ("mpich", "gloo")
_NEEDS = {"torch": ("torch",), "mpich": ("mpi4py",), "gloo": ("torch",)}


def main() -> int:
    """Run the benchmark; the exit status."""
    options = _parse()
    print(options.machine)
    rows: list[list[Figure]] = []
    try:
        with busy_processes(options.beside, own_sessions=True):
            for nranks in options.ranks:
                rows += _run(options, nranks)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    _write(options, rows)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.host",
        description="Times hostnccl and compares it with MPICH and gloo.",
    )
    add = parser.add_argument
    add("--ranks", type=list_of(positive), default=(2, 4, 8), help="worlds (default: 2,4,8)")
    add(
        "--operations",
        type=list_of(one_of(_OPERATIONS)),
        default=_OPERATIONS,
        help="default: all",
    )
    add("--dtypes", type=list_of(one_of(_DTYPES)), default=("float32",), help="default: float32")
    add("--sizes", type=list_of(parse_size), help="bytes, as 4,64K,16M (default: 4 to 256M)")
    add("--quick", action="store_true", help="five sizes, shorter samples")
    add("--libraries", type=list_of(one_of(_LIBRARIES)), help="default: all")
    add("--repeats", type=int, help="samples of each (default: 9, quick: 5, beside: 21)")
    add("--passes", type=int, default=1, help="over all rows, minutes apart (default: 1)")
    add("--beside", type=int, default=0, help="CPU-bound processes beside the ranks (default: 0)")
    add("--compute", type=float, default=0, help="us of CPU time before each call (default: 0)")
    add(
        "--budget",
        type=float,
        help="seconds of a sample (default: 0.02, quick: 0.005, beside: 0.025)",
    )
    add("--out", type=Path, default=_OUT, help="folder for JSON and plot (default: %(default)s)")
    options = parser.parse_args()
    options.sizes = options.sizes or (_QUICK_SIZES if options.quick else _FULL_SIZES)
    repeats = 21 if options.beside else 5 if options.quick else 9  # for a ninth decile
    options.repeats = options.repeats or repeats
    default = 0.025 if options.beside else 0.005 if options.quick else 0.02
    options.budget = options.budget or default
    options.libraries = _installed(options.libraries or _LIBRARIES)
    options.machine = describe(inspect("host"))
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


def _run(options: argparse.Namespace, nranks: int) -> list[list[Figure]]:
    """Measure with one number of ranks, and return the figures of each row."""
    with contextlib.ExitStack() as stack:
        worlds = [
            stack.enter_context(world(library, nranks, options.compute / 1e6))
            for library in options.libraries
        ]
        known = ", ".join(f"{one.library} ({one.version})" for one in worlds)
        print(f"\n{nranks} ranks: {known}", flush=True)
        compared = [name for name in _COMPARED if name in options.libraries]
        rows = _rows(options, nranks)
        measured: dict[Row, dict[str, list[Elapsed]]] = {row: defaultdict(list) for row in rows}
        table = report.Table()
        found = []
        for number, row in itertools.product(range(options.passes), rows):
            for library, samples in _measure(options, row, worlds).items():
                measured[row][library] += samples
            if number == options.passes - 1:
                about: dict[str, Any] = {"dtype": row.dtype, "ranks": nranks, "bytes": row.nbytes}
                name = _RENAMED.get(row.operation, row.operation)
                figures = timing.figures(measured[row], lambda _: "", operation=name, **about)
                found.append(figures)
                table.add(report.line(figures, [*options.libraries, "copy"], compared))
    for ours, library in itertools.product(("hostnccl", "numpy", "torch"), _COMPARED):
        if text := report.summary(found, ours, library):
            print(text, flush=True)
    return found


def _rows(options: argparse.Namespace, nranks: int) -> list[Row]:
    names = {new: name for name, new in _RENAMED.items()}
    rows = [
        exact_row(names.get(operation, operation), dtype, nranks, nbytes)
        for dtype in options.dtypes
        for operation in options.operations
        for nbytes in ([4] if operation == "barrier" else options.sizes)
        if operation != "barrier" or dtype == options.dtypes[0]
    ]
    return list(dict.fromkeys(rows))


def _measure(
    options: argparse.Namespace, row: Row, worlds: list[World]
) -> dict[str, list[Elapsed]]:
    able = {one.library: one.sample for one in worlds if one.prepare(row)}
    source, target = np.ones(row.nbytes, np.uint8), np.ones(row.nbytes, np.uint8)
    copy = partial(np.copyto, target, source)
    timers = {**able, "copy": lambda calls: timing.HostClock().measure(copy, calls)}
    return timing.samples(timers, options.repeats, options.budget)


def _write(options: argparse.Namespace, rows: list[list[Figure]]) -> None:
    """Write the JSON file, and the plots of the first dtype if matplotlib is installed."""
    found = [figure for row in rows for figure in row]
    report.write_json(
        options.out / "host.json",
        found,
        machine=options.machine,
        beside=options.beside,
        compute=options.compute,
    )
    try:
        from benchmarks.plot import lines
    except ImportError:
        print("note: no plot, matplotlib is not installed")
        return
    dtype = options.dtypes[0]
    how = f", beside {options.beside} busy processes" if options.beside else ""
    if options.compute:
        how += f", {options.compute:g} us of computation before each call"
    for nranks in options.ranks:
        chosen = [one for one in found if (one["ranks"], one["dtype"]) == (nranks, dtype)]
        title = f"{nranks} ranks, {dtype}{how}\n{options.machine}"
        lines(options.out / f"host-{nranks}ranks.png", chosen, title)


if __name__ == "__main__":
    sys.exit(main())
