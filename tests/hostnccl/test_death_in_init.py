"""Proves that ranks which arrive at a rendezvous after its failure get its error, regardless of
which failed processes have exited, and even if the late rank has become the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from pynccl import nccl
from tests.support.launcher import Launcher, Outcome, Run
from tests.support.rank import Rank, wait_for

_ENV = {"HOSTNCCL_INIT_TIMEOUT": "20"}
_LATEST = 10.0  # seconds, on a busy machine: half of the time limit


def _come(rank: Rank, folder: Path, leaves: list[int]) -> None:
    """Ranks arrive one after the other; the last one after the others have failed."""
    rank.report(os.getpid())
    wait_for(f"{folder}/{rank.rank}")
    began = time.monotonic()
    with pytest.raises(nccl.NcclRemoteError, match=r"rank \d \(pid \d+\) died"):
        rank.communicator()
    if rank.rank == rank.nranks - 1:
        assert time.monotonic() - began < _LATEST
        (folder / "done").touch()
    elif rank.rank in leaves:
        os._exit(0)
    else:
        wait_for(f"{folder}/done")  # still alive when the last one arrives


def _sockets(pid: int) -> int:
    """The number of open sockets of a process."""
    count = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(entry.path).startswith("socket:")
    return count


def _state(pid: int) -> str:
    """The state of a process's main thread, as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _has_exited(pid: int) -> bool:
    """Whether all threads of a process have ended, each of which keeps its sockets open."""
    folder = Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError):
        return [one.name for one in folder.iterdir()] == [str(pid)] and _state(pid) == "Z"
    return True


def wait_for_exit(pid: int) -> None:
    """Wait until a process has closed its sockets, of which no rank then expects an answer."""
    deadline = time.monotonic() + 20
    while not _has_exited(pid):
        assert time.monotonic() < deadline, f"process {pid} has not exited"
        time.sleep(0.01)


def arrive(folder: Path, rank: int, pid: int) -> None:
    """Let a rank begin. Return once it hosts the rendezvous or has connected, and sleeps."""
    before = _sockets(pid)
    (folder / str(rank)).touch()
    deadline = time.monotonic() + 20
    while _sockets(pid) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    asleep = 0  # samples; those of a process that a busy machine does not run do not count
    while asleep < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
        asleep += _state(pid) == "S"


def _check(outcomes: list[Outcome], ranks: set[int]) -> None:
    failed = [one for one in outcomes if one.rank in ranks and not one.ok]
    assert not failed, "\n".join(f"rank {one.rank}: {one.died} {one.trace}" for one in failed)


@pytest.mark.parametrize(
    ("dies", "leaves"), [(0, []), (1, [0]), (1, [])], ids=["host", "joiner", "joiner, host stays"]
)
def test_a_late_rank(launch: Launcher, tmp_path: Path, dies: int, leaves: list[int]) -> None:
    nranks = 4

    def drive(run: Run) -> None:
        pids = run.gather_reports()
        for rank in range(nranks - 1):
            arrive(tmp_path, rank, pids[rank])
        run.kill(dies)
        for rank in leaves:
            wait_for_exit(pids[rank])
        time.sleep(1)
        (tmp_path / str(nranks - 1)).touch()

    outcomes = launch.outcomes(
        nranks, _come, tmp_path, leaves, while_running=drive, env=_ENV, timeout=60
    )
    _check(outcomes, set(range(nranks)) - {dies, *leaves})


@pytest.mark.parametrize("nranks", [3, 4])
def test_a_late_rank_that_becomes_the_host(launch: Launcher, tmp_path: Path, nranks: int) -> None:
    """The host dies while the second rank cannot notice it, so the third binds.

    A fourth arrives after the third has exited.
    """
    leaves = [2] if nranks == 4 else []
    took = 0.0  # from the failure of rank 1 on

    def drive(run: Run) -> None:
        pids = run.gather_reports()
        for rank in (0, 1):
            arrive(tmp_path, rank, pids[rank])
        run.kill(1, signal.SIGSTOP)
        run.kill(0)
        wait_for_exit(pids[0])
        (tmp_path / "2").touch()
        time.sleep(0.5)
        nonlocal took
        continued = run.kill(1, signal.SIGCONT)
        if leaves:
            wait_for_exit(pids[2])
            (tmp_path / "3").touch()
            took = time.monotonic() - continued

    outcomes = launch.outcomes(
        nranks, _come, tmp_path, leaves, while_running=drive, env=_ENV, timeout=60
    )
    if took > 5:
        pytest.skip(f"rank 3 came after {took:.0f} s, and rank 1 answers for 10 s")
    _check(outcomes, {1, nranks - 1})
