"""Proves that an exit without close() is a death, and that the death of a rank ends growing,
registrations and suspensions, at any step of them. tests/reliability/test_kill_matrix.py covers the
death of a rank in every operation and before every other call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import PAGE, Blocked
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank, wait_for

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
    """Rank 0 is in calls that wait for rank 1 when rank 1 is killed."""
    calls = (lambda comm: comm.grow(3), _register_for_ever, _suspend_for_ever)
    comms = [rank.comm.split(0) for _ in calls]
    blocked = [
        Blocked(lambda call=call, comm=comm: call(comm))  # type: ignore[misc]
        for call, comm in zip(calls, comms, strict=True)
        if rank.rank == 0 or call is not calls[0]
    ]
    for one in blocked[: rank.rank == 0]:
        one.wait()  # in the call that rank 1 does not make
    rank.report("ready")
    if rank.rank == 1:
        time.sleep(60)
    for one in blocked:
        one.end("rank 1")
    ended = time.monotonic()
    for comm in comms:
        assert comm is not None
        comm.abort()
    rank.comm.abort()
    return ended


def _register_for_ever(comm: nccl.Communicator) -> None:
    buffer = comm.mem_alloc(PAGE)
    while True:
        comm.register_window(buffer).close()


def _suspend_for_ever(comm: nccl.Communicator) -> None:
    while True:
        comm.suspend()
        comm.resume()


def test_a_killed_rank_ends_calls_at_any_step(launch: Launcher) -> None:
    killed = 0.0

    def kill(run: Run) -> None:
        nonlocal killed
        run.gather_reports()
        killed = run.kill(1)

    survivor, dead = launch.outcomes(2, _survivor, while_running=kill, timeout=30)
    assert dead.died
    assert survivor.ok, survivor.trace
    assert survivor.value - killed < 20  # shorter than any time limit


def _all_reduce(comm: nccl.Communicator) -> None:
    comm.all_reduce(np.ones(1000))


def _agree_on_a_split(comm: nccl.Communicator) -> None:
    comm.revoke()
    comm.split(0)


def _wait_for_a_late_rank(
    rank: Rank, call: Callable[[nccl.Communicator], None], folder: Path
) -> float:
    comm = rank.communicator()
    rank.report("ready")
    if rank.rank == 1:
        wait_for(f"{folder}/failed")
    elif rank.rank == 0:
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 2 \(pid \d+\) died"):
            call(comm)
        (folder / "failed").touch()
    else:
        time.sleep(60)
    ended = time.monotonic()
    comm.abort()
    return ended


@pytest.mark.parametrize("strict", [0, 1])
@pytest.mark.parametrize("call", [_all_reduce, _agree_on_a_split])
def test_a_death_is_noticed_while_another_rank_is_late(
    launch: Launcher, tmp_path: Path, call: Callable[[nccl.Communicator], None], strict: int
) -> None:
    """In strict mode, the first operation waits until all ranks have called it."""
    killed = 0.0

    def kill(run: Run) -> None:
        nonlocal killed
        run.gather_reports()
        time.sleep(0.2)  # rank 0 waits for rank 1 first
        killed = run.kill(2)

    environment = {"HOSTNCCL_STRICT": str(strict)}
    survivor, late, _ = launch.outcomes(
        3, _wait_for_a_late_rank, call, tmp_path, while_running=kill, env=environment, timeout=30
    )
    assert survivor.ok, survivor.trace
    assert survivor.value - killed < 20
    assert late.ok, late.trace


def _run_another_program(rank: Rank) -> float:
    comm = rank.comm
    comm.all_reduce(np.ones(1000))
    if rank.rank == 1:
        os.execv("/bin/sleep", ["sleep", "8"])
    began = time.monotonic()
    with pytest.raises(nccl.NcclRemoteError, match=r"rank 1 \(pid \d+\) died"):
        comm.all_reduce(np.ones(1000))
    took = time.monotonic() - began
    comm.abort()
    return took


def test_a_rank_that_runs_another_program_is_dead(launch: Launcher) -> None:
    """Its process continues with the same start time."""
    survivor, _ = launch.outcomes(2, _run_another_program, timeout=40)
    assert survivor.ok, survivor.trace
    assert survivor.value < 6
