"""Times changes of the ranks: shrink, recover, grow, and abort followed by a new init.

    python -m benchmarks.recovery
    python -m benchmarks.recovery --ranks 2,4,8,16 --repeats 10

Prints a table in milliseconds: medians over the repeats of the slowest rank's time. The ranks are
processes on CPUs, new ones for each repeat. After each change, an all_reduce of the new
communicator is checked.

``recover`` is the call, after a rank was killed and the others have raised. ``killed to recovered``
is the time from the kill to the new communicator, and includes the detection of the death.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from benchmarks import report
from benchmarks.machine import describe, inspect
from pynccl import nccl, testing
from pynccl.tools.text import list_of, positive

__all__ = ["COLUMNS", "main", "medians"]

Times: TypeAlias = dict[str, list[float]]

COLUMNS = ("init", "shrink", "grow", "abort + init", "recover", "killed to recovered")
_AHEAD = 0.3  # seconds until the last rank is killed
_TIMEOUT = 300.0  # seconds for the processes of one repeat


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description="the time to continue with other ranks")
    parser.add_argument(
        "--ranks", type=list_of(positive), default=(2, 4, 8, 16), help="world sizes (2,4,8,16)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="of each number (5)")
    arguments = parser.parse_args(argv)
    print(describe(inspect("host")) + "\n")
    table = report.Table()
    for size in arguments.ranks:
        table.add({"ranks": str(size), **medians(_repeat(size, arguments.repeats))})
    return 0


def medians(times: Times) -> dict[str, float | None]:
    """Return the milliseconds of each column, None if it has no samples, as with one rank."""
    return {
        column: 1e3 * statistics.median(times[column]) if times.get(column) else None
        for column in COLUMNS
    }


def _repeat(size: int, repeats: int) -> Times:
    """Return the slowest rank's seconds in each repeat, by column."""
    slowest: Times = {}
    with testing.Launcher() as launcher:
        for _ in range(repeats):
            with launcher.start(
                size, _measure, fresh=True, timeout=_TIMEOUT, grace=_TIMEOUT, unique_ids=4
            ) as run:
                outcomes = run.outcomes()
            for outcome in outcomes[:-1]:  # the last rank is killed
                if not outcome.ok:
                    raise SystemExit(f"a rank failed: {outcome.died}{outcome.trace}")
            for column in COLUMNS:
                of_ranks = [outcome.value.get(column, []) for outcome in outcomes[:-1]]
                slowest.setdefault(column, []).extend(max(t) for t in zip(*of_ranks, strict=True))
    return slowest


def _measure(rank: testing.Rank) -> Times:
    """Return the seconds of this rank by column. The last rank ends by SIGKILL.

    Args:
        rank: this rank; its world has four unique ids.
    """
    times: Times = {}
    comm = rank.comm
    is_last = rank.rank == rank.world_size - 1

    def timed(column: str, change: Callable[[], nccl.Communicator]) -> nccl.Communicator:
        began = time.perf_counter()
        made = change()
        times[column] = [time.perf_counter() - began]
        return made

    _meet(comm)
    made = timed("init", lambda: rank.communicator(1))
    _check(made)
    _meet(comm)

    def replace() -> nccl.Communicator:
        made.abort()
        return rank.communicator(2)

    replaced = timed("abort + init", replace)
    _check(replaced)
    _meet(comm)
    if not is_last:
        smaller = timed("shrink", lambda: replaced.shrink([rank.world_size - 1], abort=True))
        _check(smaller)
    replaced.abort()

    unique_id = np.zeros(128, np.uint8)
    if rank.rank == 0:
        unique_id[:] = np.frombuffer(bytes(smaller.get_unique_id()), np.uint8)
    comm.broadcast(unique_id, 0)
    id_of_root = unique_id.tobytes() if rank.rank == 0 else None
    _meet(comm)
    if is_last:
        whole = nccl.Communicator.join(
            rank.world_size, unique_id.tobytes(), rank.rank, provider=rank.provider
        )
    else:
        whole = timed("grow", lambda: smaller.grow(rank.world_size, id_of_root))
        smaller.close()
    _check(whole)

    moment = np.array([time.monotonic() + _AHEAD])
    comm.broadcast(moment, 0)
    if is_last:
        time.sleep(max(0.0, moment[0] - time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            whole.all_reduce(np.ones(1, np.float32))
    except nccl.NcclRemoteError:
        pass
    recovered = timed("recover", whole.recover)
    times["killed to recovered"] = [time.monotonic() - moment[0]]
    _check(recovered)
    recovered.close()
    comm.abort()
    return times


def _meet(comm: nccl.Communicator) -> None:
    for _ in range(3):
        comm.all_reduce(np.ones(1, np.float32))


def _check(comm: nccl.Communicator) -> None:
    ranks = np.full(1000, comm.rank, np.int64)
    comm.all_reduce(ranks)
    expected = comm.nranks * (comm.nranks - 1) // 2
    if not (ranks == expected).all():
        raise RuntimeError(f"an all_reduce of {comm.nranks} ranks gave {ranks[0]}, not {expected}")


if __name__ == "__main__":
    sys.exit(main())
