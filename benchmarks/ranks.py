"""Launches the ranks of a benchmark by pynccl.testing, and yields their reports."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pynccl.testing import Launcher, LaunchError

__all__ = ["BenchmarkError", "busy_processes", "reasons", "run_ranks"]

_GRACE = 1.0  # seconds for the other ranks after one has failed

# Until its parent ends, even by a signal: one that ends a session does not reach other sessions.
_BUSY = """
import os, sys
parent, *cpus = map(int, sys.argv[1:])
if cpus:
    os.sched_setaffinity(0, cpus)
while os.getppid() == parent:
    for _ in range(1_000_000): pass
"""


class BenchmarkError(Exception):
    """An error that ends the run without a traceback."""


@contextlib.contextmanager
def busy_processes(
    number: int, cpus: Iterable[int] = (), *, own_sessions: bool = False
) -> Iterator[None]:
    """Run CPU-bound processes during the block.

    Args:
        number: the number of processes.
        cpus: the CPUs that they may use; all if empty.
        own_sessions: whether each is a session of its own, to which Linux may grant CPU time of
            its own (sched_autogroup).
    """
    command = [sys.executable, "-c", _BUSY, str(os.getpid()), *map(str, cpus)]
    processes = [subprocess.Popen(command, start_new_session=own_sessions) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_ranks(
    nranks: int, fn: Callable[..., None], args: tuple[object, ...], silence: float
) -> Iterator[Any]:
    """Run ``fn(rank, *args)`` in a new process for each rank.

    No rank remains when the iteration ends.

    Args:
        nranks: the number of ranks.
        fn: a function at the top level of a module; its first argument is a pynccl.testing.Rank.
        args: the other arguments, which must be picklable.
        silence: the seconds after which missing reports are an error.

    Yields:
        The reports of the ranks, in the order of arrival.

    Raises:
        BenchmarkError: a rank raised or died, or no rank has reported for too long.
    """
    with (
        Launcher() as launcher,
        launcher.start(nranks, fn, args, unique_ids=0, timeout=None, grace=_GRACE) as run,
    ):
        try:
            for _, value in run.reports(silence):
                yield value
        except LaunchError as error:
            raise BenchmarkError(reasons(error)) from None


def reasons(error: LaunchError) -> str:
    """Return the BenchmarkErrors of the ranks, else the tracebacks of all that failed."""
    given = [
        f"rank {outcome.rank}: {outcome.error}"
        for outcome in error.outcomes
        if isinstance(outcome.error, BenchmarkError)
    ]
    return "; ".join(given) or str(error)
