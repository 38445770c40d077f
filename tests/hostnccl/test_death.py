"""Proves that an exit without close() is a death, and that the death of a rank ends all calls that
wait for it at the same time, at any step of them: waits for signals, registrations, suspensions,
splits, growing, graphs. tests/reliability/test_kill_matrix.py covers the death of a rank in every
operation.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import PAGE, Area, Blocked, synchronize
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank

pytestmark = pytest.mark.long


def _exit_without_close(rank: Rank) -> None:
    comm = rank.comm
    comm.all_reduce(np.ones(1000))
    if rank.rank == 1:
        os._exit(7)
    with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 .* in ncclAllReduce\("):
        comm.all_reduce(np.ones(1000))


def test_exit_without_close_is_a_death(launch: Launcher) -> None:
    outcomes = launch.outcomes(2, _exit_without_close)
    assert outcomes[0].ok, outcomes[0].trace
    assert outcomes[1].died == "exited with 7"


def _survivor(rank: Rank) -> float:
    """Rank 0 is in every call that waits for rank 1 when rank 1 is killed."""
    calls: dict[str, Callable[[nccl.Communicator], object]] = {
        "wait": lambda comm: comm.wait_signal(1),
        "register": lambda comm: comm.register_window(comm.mem_alloc(PAGE)),
        "suspend": lambda comm: comm.suspend(),
        "split": lambda comm: comm.split(0),
        "grow": lambda comm: comm.grow(3),
        "graph": _launch_a_wait,
        "windows": _register_for_ever,
        "suspensions": _suspend_for_ever,
    }
    comms = [rank.comm.split(0) for _ in calls]
    for comm in comms[:1] + comms[5:6]:
        assert comm is not None
        Area(comm)
    synchronize(rank)
    pairs = list(zip(calls, comms, strict=True))
    if rank.rank == 1:
        for name, comm in pairs[6:]:
            threading.Thread(target=calls[name], args=(comm,), daemon=True).start()
        time.sleep(0.05)
        rank.report("ready")
        time.sleep(60)
    blocked = [Blocked(lambda name=name, comm=comm: calls[name](comm)) for name, comm in pairs]  # type: ignore[misc]
    rank.report("ready")
    for one in blocked:
        one.end("rank 1")
    ended = time.monotonic()
    for comm in comms:
        assert comm is not None
        comm.abort()
    rank.comm.abort()
    return ended


def _launch_a_wait(comm: nccl.Communicator) -> None:
    stream = nccl.Stream(comm.library.path)
    with nccl.capture(stream) as graph:
        comm.wait_signal(1, stream=stream)
    graph.launch(stream)
    with pytest.raises(nccl.NcclError):
        stream.synchronize()
    error = comm.async_error()
    assert error is not None
    raise error


def _register_for_ever(comm: nccl.Communicator) -> None:
    buffer = comm.mem_alloc(PAGE)
    while True:
        comm.register_window(buffer).close()


def _suspend_for_ever(comm: nccl.Communicator) -> None:
    while True:
        comm.suspend()
        comm.resume()


def test_a_killed_rank_ends_all_waits(launch: Launcher) -> None:
    killed = 0.0

    def kill(run: Run) -> None:
        nonlocal killed
        run.gather_reports()
        killed = run.kill(1)

    survivor, dead = launch.outcomes(2, _survivor, while_running=kill, timeout=30)
    assert dead.died
    assert survivor.ok, survivor.trace
    assert survivor.value - killed < 20  # shorter than any time limit
