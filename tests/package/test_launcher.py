"""Proves the launcher itself: values in the order of ranks, errors with their rank and traceback,
deaths and deadlines reported, and no process left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

from tests.support.launcher import Launcher, RankFailure, Run, skip_old
from tests.support.worker import Outcome, Rank


def _identity(rank: Rank, offset: int) -> tuple[int, int, int]:
    return rank.rank + offset, rank.nranks, os.getpid()


def test_values_come_in_the_order_of_ranks(launch: Launcher) -> None:
    values = launch(3, _identity, 10)
    assert [value[:2] for value in values] == [(10, 3), (11, 3), (12, 3)]
    assert len({value[2] for value in values} | {os.getpid()}) == 4


def test_threads_share_a_process(launch: Launcher) -> None:
    values = launch(3, _identity, 0, threads=True)
    assert [value[0] for value in values] == [0, 1, 2]
    assert len({value[2] for value in values}) == 1


def test_processes_are_kept_and_fresh_ones_are_not() -> None:
    with Launcher() as launch:
        first, second, fresh = (
            launch(2, _identity, 0),
            launch(2, _identity, 0),
            launch(2, _identity, 0, fresh=True),
        )
    assert first == second != fresh
    for _, _, pid in [*first, *fresh]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_environment_reaches_the_ranks(launch: Launcher) -> None:
    assert launch(2, _variable, "PYNCCL_TEST", env={"PYNCCL_TEST": "here"}) == ["here", "here"]
    assert launch(1, _variable, "PYNCCL_TEST") == [None]


def _variable(_: Rank, name: str) -> str | None:
    return os.environ.get(name)


class _UnpicklableError(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def _raise(rank: Rank, error: Exception | None) -> None:
    if rank.rank == 1:
        if error is None:
            raise _UnpicklableError(1, 2)
        raise error


def test_an_error_names_its_rank_and_is_the_cause(launch: Launcher) -> None:
    with pytest.raises(RankFailure, match="rank 1: KeyError: 'lost'") as caught:
        launch(2, _raise, KeyError("lost"))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in _raise" in str(caught.value)
    assert [outcome.ok for outcome in caught.value.outcomes] == [True, False]


def test_an_error_that_cannot_be_pickled_comes_as_text(launch: Launcher) -> None:
    with pytest.raises(RankFailure, match="_UnpicklableError: 1 and 2"):
        launch(2, _raise, None, threads=True)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("ncclX is in NCCL since 2.32.0; the loaded x (version 2.28.9) does not have it", True),
        ("config.num_rma_ctx needs NCCL 2.29.0; the loaded x is 2.28.9", True),
        ("tensor: dtype float8_e5m2 needs NCCL 2.24.0, the loaded one is 2.20.5", True),
        ("ncclX failed: internal error of NCCL 2.28.9", False),
    ],
)
def test_on_gpus_what_an_older_nccl_lacks_skips_the_test(text: str, lacks: bool) -> None:
    old = Outcome(0, error=ValueError(text))
    assert old.lacks == (text if lacks else "")
    failure = RankFailure("", [old, Outcome(1, value=3)])
    with pytest.raises(pytest.skip.Exception) if lacks else contextlib.nullcontext():
        skip_old(failure)
    skip_old(RankFailure("", [old, Outcome(1, died="killed by SIGSEGV")]))


def _die(rank: Rank) -> None:
    if rank.rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_a_death_is_reported_with_its_signal_and_last_words(launch: Launcher) -> None:
    with pytest.raises(RankFailure, match=r"rank 0: killed by SIGSEGV[^-]*in _die"):
        launch(2, _die, fresh=True)


def _hang(rank: Rank) -> None:
    if rank.rank == 1:
        threading.Event().wait()


@pytest.mark.parametrize("threads", [False, True])
def test_a_hang_ends_at_the_deadline_and_shows_where(launch: Launcher, threads: bool) -> None:
    started = time.monotonic()
    with pytest.raises(
        RankFailure, match=r"1 of 2 ranks failed\n--- rank 1: not done(.|\n)*in _hang"
    ):
        launch(2, _hang, timeout=1, threads=threads, fresh=True)
    assert time.monotonic() - started < 5


def _tell_and_wait(rank: Rank) -> None:
    rank.tell(rank.rank * 10)
    if rank.rank == 1:
        time.sleep(60)


def test_the_test_hears_ranks_and_can_kill_one(launch: Launcher) -> None:
    def kill(run: Run) -> None:
        assert run.hear() == [0, 10]
        run.kill(1, signal.SIGTERM)

    outcomes = launch.outcomes(2, _tell_and_wait, while_running=kill)
    assert outcomes[0].ok
    assert outcomes[1].died == "killed by SIGTERM"


def test_a_failure_does_not_spoil_the_next_test(launch: Launcher) -> None:
    with pytest.raises(RankFailure):
        launch(2, _raise, ValueError("once"))
    assert [value[0] for value in launch(2, _identity, 0)] == [0, 1]
