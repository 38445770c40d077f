"""Proves that creating a group without a rank or the store raises an error that names it:
new_group, split_group, several threads (tests/reliability/test_forked_children.py has a rank that
died); and that reconfigure() continues with the surviving ranks.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.support.blocking import wait_until_blocked, when_blocked
from tests.support.commands import free_port
from tests.support.in_world import init_on_host
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank, wait_for
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_PAIR_CONFIG = "pynccl.mirror.group.process_group.ProcessGroup._pair_config"
_LIMIT = 1.5  # seconds
_SOON = 15.0  # seconds, on a busy machine; the limits that are not meant are 30


def _sum_is_right(dist: Any, group: Any, members: list[int], own: int) -> None:
    tensor = torch.full((1000,), own + 1.0)
    dist.all_reduce(tensor, group=group)
    assert (tensor == sum(member + 1.0 for member in members)).all()


def _soon(error: Any, match: str, call: Callable[[], object]) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=match):
        call()
    assert time.monotonic() - began < _SOON


def _until_all_are_done(dist: Any) -> None:
    """Synchronize by the store, which pynccl does not notice."""
    dist.monitored_barrier(timeout=timedelta(seconds=30))


def _check_all_but(outcomes: list[Any], *lost: int) -> None:
    for rank, outcome in enumerate(outcomes):
        assert rank in lost or outcome.ok, f"rank {rank}: {outcome.died} {outcome.trace}"


def _interrupted_init(rank: Rank, url: str) -> None:
    import pynccl as dist
    from pynccl._internal.rendezvous import Rendezvous

    init = partial(init_on_host, rank, url)
    if rank.rank != 0:
        _soon(dist.DistBackendError, "rank 0 has died or has left the job", init)
        return
    gather = Rendezvous.gather

    def gather_and_raise(*arguments: Any) -> None:
        gather(*arguments)
        raise KeyboardInterrupt

    with patch.object(Rendezvous, "gather", gather_and_raise), pytest.raises(KeyboardInterrupt):
        init()


def test_init_that_is_interrupted_on_a_rank(launch: Launcher, tmp_path: Path) -> None:
    """It ends between the exchange of the processes and that of the unique id."""
    launch(3, _interrupted_init, f"file://{tmp_path}/store")


@on_ranks(3)
def test_new_group_that_a_rank_skips(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    """Rank 2 arrives after rank 0 has given up, and still counts it as present."""
    gave_up = tmp_path / "gave up"
    if rank == 2:
        wait_for(str(gave_up))
    if rank != 1:
        missing = "ranks 1, 2" if rank == 0 else "rank 1"
        text = f"waiting 0.5 seconds for {missing} of 3 in 'cpu/communicator'"
        limit = timedelta(seconds=0.5)
        _soon(dist.DistStoreError, text, lambda: dist.new_group(timeout=limit))
        gave_up.touch()
    _until_all_are_done(dist)


@on_ranks(3)
def test_split_group_that_a_rank_skips(dist: Any, rank: int, size: int) -> None:
    dist.set_timeout(timedelta(seconds=_LIMIT))
    if rank != 1:
        split = partial(dist.split_group, split_ranks=[[0, 1, 2]])
        _soon(dist.DistBackendError, "ncclCommSplit", split)
    _until_all_are_done(dist)


@on_ranks(3)
def test_split_group_into_different_parts(dist: Any, rank: int, size: int) -> None:
    parts = [[0, 1], [2]] if rank == 0 else [[0], [1, 2]]
    if rank == 0:
        text = "split_ranks: rank 0 requests a group of 2 ranks, but the arguments of the other"
        _soon(ValueError, text, lambda: dist.split_group(None, parts))
    else:
        _sum_is_right(dist, dist.split_group(None, parts), [1, 2], rank)


def _two_threads(rank: Rank, url: str) -> None:
    dist = init_on_host(rank, url)
    own = rank.rank
    if own == 1:
        rank.wait_event("made", 0, 2)

    waits = threading.Event()

    def make(members: list[int]) -> None:
        waits.set()
        group = dist.new_group(members)
        if own in members:
            _sum_is_right(dist, group, members, own)

    thread = threading.Thread(target=make, args=[[0, 1]])
    thread.start()
    waits.wait()
    wait_until_blocked(thread)  # all ranks create the groups in the same order
    make([0, 2])  # on rank 0 the other thread still waits
    rank.set_event("made")
    thread.join(20)
    assert not thread.is_alive()
    dist.destroy_process_group()


def test_a_waiting_thread_does_not_block_another(launch: Launcher) -> None:
    launch(3, _two_threads, f"tcp://127.0.0.1:{free_port()}", fresh=True)


def _without_the_store(rank: Rank, url: str, folder: Path) -> None:
    limit = timedelta(seconds=_LIMIT)
    dist = init_on_host(rank, url)
    rank.report("ready")
    if rank.rank == 0:
        time.sleep(60)
    wait_for(str(folder / "stopped"))
    error = (dist.DistNetworkError, dist.DistStoreError)
    text = r"the job's store at 127.0.0.1:\d+ has not answered"
    _soon(error, text, lambda: dist.new_group([1, 2], timeout=limit))
    (folder / f"raised{rank.rank}").touch()


def test_a_store_that_does_not_answer(launch: Launcher, tmp_path: Path) -> None:
    """test_mirror_relay.py tests a store that is gone."""

    def end(run: Run) -> None:
        run.gather_reports()
        run.kill(0, signal.SIGSTOP)
        (tmp_path / "stopped").touch()
        for rank in (1, 2):
            wait_for(str(tmp_path / f"raised{rank}"))
        run.kill(0)

    url = f"tcp://127.0.0.1:{free_port()}"
    outcomes = launch.outcomes(3, _without_the_store, url, tmp_path, while_running=end, timeout=60)
    _check_all_but(outcomes, 0)


def _reconfigure(rank: Rank, folder: Path, left: list[int], late: bool) -> None:
    from pynccl import nccl

    own = rank.rank
    dist = init_on_host(rank, f"file://{folder}/store")
    part = dist.new_group([0, 1])
    _sum_is_right(dist, None, [0, 1, 2, 3], own)
    dist.barrier()
    rank.report("ready")
    if own not in left:
        if not late:
            time.sleep(60)
        rank.wait_event("gone on", *left)
        with pytest.raises(nccl.NcclRemoteError, match="was excluded"):
            dist.reconfigure(timeout=timedelta(seconds=1))
        return
    dist.set_timeout(timedelta(seconds=_LIMIT))
    with pytest.raises(dist.DistBackendError):
        while True:
            dist.barrier()
    dist.set_timeout(timedelta(seconds=30))
    rank.set_event("failed")
    rank.wait_event("failed", *left)
    # Ranks do not wait for a dead rank, but for one that is only late.
    gives_up = late and own == 0
    if gives_up:
        rank.wait_event("waits", *left[1:])
    elif late:
        when_blocked(lambda: rank.set_event("waits"))
    began = time.monotonic()
    group = dist.reconfigure(timeout=timedelta(seconds=_LIMIT if gives_up else 30))
    assert time.monotonic() - began < _SOON
    assert dist.group.WORLD is group
    assert (dist.get_rank(), dist.get_world_size()) == (left.index(own), len(left))
    _sum_is_right(dist, None, left, own)
    _sum_is_right(dist, dist.reconfigure(timeout=timedelta(seconds=30)), left, own)
    rank.set_event("gone on")
    if own in (0, 1):
        with pytest.raises(ValueError, match="abort"):
            dist.barrier(part)
    dist.destroy_process_group()


@pytest.mark.parametrize("lost", [[1], [0, 3]] if FULL else [[0, 3]], ids=str)
def test_reconfigure_without_dead_ranks(launch: Launcher, tmp_path: Path, lost: list[int]) -> None:
    left = [rank for rank in range(4) if rank not in lost]

    def kill(run: Run) -> None:
        run.gather_reports()
        for rank in lost:
            run.kill(rank)

    outcomes = launch.outcomes(
        4, _reconfigure, tmp_path, left, False, while_running=kill, timeout=60
    )
    _check_all_but(outcomes, *lost)


def test_reconfigure_without_a_missing_rank(launch: Launcher, tmp_path: Path) -> None:
    _check_all_but(launch.outcomes(4, _reconfigure, tmp_path, [0, 1, 3], True, timeout=60))


@on_ranks(2)
def test_reconfigure_ends_waits_of_other_ranks(dist: Any, rank: int, size: int) -> None:
    """Rank 0 waits for rank 1, which is already reconfiguring."""
    _sum_is_right(dist, None, [0, 1], rank)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"rank 1 .*revoked"):
            dist.all_reduce(torch.ones(1))
    _sum_is_right(dist, dist.reconfigure(timeout=timedelta(seconds=30)), [0, 1], rank)


@on_ranks(2)
def test_a_pair_has_the_time_limit_of_its_group(
    dist: Any, rank: int, size: int, tmp_path: Path
) -> None:
    """The peer has sent the unique id, but does not use it."""
    raised = str(tmp_path / "raised")

    def stay_away(*_: object) -> None:
        wait_for(raised)
        raise InterruptedError

    tensor = torch.ones(4)
    if rank == 1:
        with patch(_PAIR_CONFIG, stay_away), pytest.raises(InterruptedError):
            dist.send(tensor, 0)
        return
    dist.set_timeout(timedelta(seconds=_LIMIT))
    _soon(dist.DistBackendError, "1.5 s", lambda: dist.recv(tensor, 1))
    Path(raised).touch()


@on_ranks(2)
def test_a_second_attempt_without_the_peer(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    """The store still contains what the peer has sent for the first one."""
    left = tmp_path / "left"
    tensor = torch.ones(4)
    with patch(_PAIR_CONFIG, side_effect=InterruptedError), pytest.raises(InterruptedError):
        dist.send(tensor, 1 - rank)
    if rank == 1:
        dist.destroy_process_group()
        left.touch()
        return
    wait_for(str(left))
    text = "rank 1 has died or has left the job"
    _soon(dist.DistBackendError, text, lambda: dist.send(tensor, 1))
