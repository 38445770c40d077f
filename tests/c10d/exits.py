"""Counts how processes with unfinished work of the backend exit: ``python -m tests.c10d.exits``.

Each run has two ranks, forked from a process that has imported torch and has no group. They exit
through interpreter shutdown. The command fails if one does not exit with status 0.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pynccl.c10d  # noqa: F401 - it registers the backend
from pynccl.c10d.build import load
from tests.c10d.in_torch import backend_of
from tests.c10d.versions import VERSION

__all__ = ["LEFT", "count"]

_LIMIT = 60.0  # seconds for a rank to end
_kept: list[Any] = []  # objects kept until interpreter shutdown


def _futures(rank: int) -> None:
    """Callbacks of futures that are pending, or run, at interpreter shutdown."""
    for _ in range(20):
        future = dist.all_reduce(torch.ones(1000), async_op=True).get_future()
        future.then(lambda done: sum(range(1000)) and done.value())
    if rank == 0:
        dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda done: done.value())


def _subgroup(rank: int) -> None:
    """Asynchronous work of a subgroup."""
    group = dist.new_group([0, 1])
    for _ in range(5):
        dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    if rank == 0:
        _kept.append(dist.all_reduce(torch.ones(1000), group=group, async_op=True))


def _connecting(rank: int) -> None:
    """Messages between ranks that are still connecting."""
    if rank == 0:
        _kept.extend((dist.isend(torch.ones(4), 1), dist.irecv(torch.ones(4), 1)))


def _destroyed(rank: int) -> None:
    """Destroy the group while a receive without a send is outstanding."""
    if rank == 0:
        _kept.append(dist.irecv(torch.ones(4), 1))
        dist.destroy_process_group()


def _in_daemon_threads(count: int) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(count)]

    def run(group: Any) -> None:
        while True:
            dist.all_reduce(torch.ones(1000), group=group)

    for group in groups:
        threading.Thread(target=run, args=[group], daemon=True).start()
    time.sleep(0.01)


def _daemon(rank: int) -> None:
    """Daemon threads in collectives."""
    _in_daemon_threads(2)


def _abort(rank: int) -> None:
    """Groups aborted while a daemon thread is in a collective of one of them."""
    _in_daemon_threads(1)
    dist.distributed_c10d._abort_process_group()


def _waiting(rank: int) -> None:
    """A daemon thread that waits for work that never completes."""
    if rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        threading.Thread(target=work.wait, daemon=True).start()
        time.sleep(0.01)


class _AtEnd:
    """Calls a function during interpreter shutdown, after all atexit functions."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


def _failing(rank: int) -> None:
    """A daemon thread whose operation fails during interpreter shutdown."""
    if rank == 1:
        time.sleep(1)
        return
    dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=0.5))
    threading.Thread(target=dist.all_reduce, args=[torch.ones(4)], daemon=True).start()
    _kept.append(_AtEnd(lambda: time.sleep(1)))


def _joined(rank: int) -> None:
    """An operation with a callback, which the other rank joins after this one has finished."""
    if rank == 1:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(4))
        return
    called: list[Any] = []
    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(called.append)
    _kept.append(_AtEnd(lambda: called or os._exit(1)))


def _hooked(_rank: int) -> None:
    """The thread that polls for failures."""
    if VERSION >= (2, 15):
        backend_of().register_abort_hook(1, int)


def _forked(rank: int) -> None:
    """A child that ends likewise, with pending work of its parent and without its threads."""
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
    if rank == 1:
        works.append(dist.all_reduce(torch.ones(4), async_op=True))
    child = os.fork()
    if child == 0:
        _kept.extend(works)
    elif _ended(child, time.monotonic() + _LIMIT) != "exit 0":
        os._exit(1)


LEFT: dict[str, Callable[[int], None]] = {
    "futures": _futures,
    "subgroup": _subgroup,
    "connecting": _connecting,
    "destroyed": _destroyed,
    "daemon": _daemon,
    "abort": _abort,
    "waiting": _waiting,
    "failing": _failing,
    "joined": _joined,
    "hooked": _hooked,
    "forked": _forked,
}


def _leave(left: str, rank: int, store: Path, seed: int) -> None:
    """The actions of a rank before interpreter shutdown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    chance = random.Random(seed * 2 + rank)
    limit = timedelta(seconds=60)
    dist.init_process_group(
        "pynccl", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit
    )
    dist.all_reduce(torch.ones(4))
    LEFT[left](rank)
    time.sleep(chance.choice([0, 0, 0.001, 0.01, 0.05]) * chance.random())


def _ended(process: int, until: float) -> str:
    """How a process ended: an exit status, the name of a signal, or "late"."""
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return f"exit {code}" if code >= 0 else signal.Signals(-code).name
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "late"


def count(left: str, runs: int, seed: int) -> Counter[str] | None:
    """Count how the ranks of some runs exit; None in a rank, which must return immediately.

    Args:
        left: the work left unfinished, a key of LEFT.
        runs: number of runs.
        seed: seed of the first run.
    """
    ends: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp())
    for run in range(runs):
        processes = []
        for rank in range(2):
            process = os.fork()
            if process == 0:
                _leave(left, rank, folder / str(run), seed + run)
                return None
            processes.append(process)
        until = time.monotonic() + _LIMIT
        ends.update(_ended(process, until) for process in processes)
    shutil.rmtree(folder)
    return ends


def main() -> int:
    """Count, print a line for each case, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="of each case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", choices=LEFT, action="append")
    given = parser.parse_args()
    load()
    status = 0
    for left in given.case or LEFT:
        ends = count(left, given.runs, given.seed)
        if ends is None:
            return 0  # in a rank, which exits now
        print(f"{left}: {dict(ends)}", flush=True)
        status |= ends.keys() != {"exit 0"}
    return status


if __name__ == "__main__":
    sys.exit(main())
