"""Proves that ranks which connect notice that another one has died before it connected."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import SHRINK_ABORT

from pynccl.nccl import NcclRemoteError
from tests.c10d.in_torch import backend_of, run_in_torch, set_event, wait_event
from tests.support.launcher import Launcher

_SIZE = 4
_SOON = 8.0  # seconds, on a busy machine; the timeout of the groups is 30 s


def _die_if_last(rank: int) -> None:
    if rank == _SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _sum() -> None:
    dist.all_reduce(torch.ones(1))


def _default_group(rank: int, folder: str) -> tuple[str, Callable[[], object]]:
    _die_if_last(rank)
    return "rank 3", _sum


def _pair(rank: int, folder: str) -> tuple[str, Callable[[], object]]:
    _sum()
    _die_if_last(rank)
    return "rank 3", lambda: dist.recv(torch.ones(1), _SIZE - 1)


def _split_group(rank: int, folder: str) -> tuple[str, Callable[[], object]]:
    pg: Any = dist.group.WORLD
    group = pg.split_group([1] if rank == 1 else [0, 2, 3])
    _die_if_last(rank)
    if rank == 1:
        return "", lambda: None
    return "rank 2", lambda: group.recv([torch.ones(1)], 2, 0).wait()


def _shrunk_group(rank: int, folder: str) -> tuple[str, Callable[[], object]]:
    """Without a communicator of the old group, so the ranks connect through the store."""
    if rank == 0:
        wait_event("raised 1")
        wait_event("raised 2")
        return "", lambda: None
    dist.shrink_group([0], shrink_flags=SHRINK_ABORT)
    _die_if_last(rank)
    return "rank 2", _sum


def _reconfigured_group(rank: int, folder: str) -> tuple[str, Callable[[], object]]:
    """By the calls that Backend.reconfigure() of torch 2.14 makes."""
    connector = backend_of()._connector
    store = dist.FileStore(f"{folder}/handles")
    store.set(str(rank), connector.handle)
    handles = [store.get(str(other)).decode() for other in range(_SIZE)]
    _die_if_last(rank)
    next_connector, _, _ = connector.reconfigured(1, handles, {})
    return "rank 3", next_connector.meet


def _use(rank: int, _size: int, create: Any, folder: str) -> bool:
    name, call = create(rank, folder)
    if not name:
        return True
    began = time.monotonic()
    with pytest.raises(
        (dist.DistBackendError, NcclRemoteError), match=f"{name} has died .* its process"
    ):
        call()
    set_event(f"raised {rank}")
    assert time.monotonic() - began < _SOON
    return True


@pytest.mark.parametrize(
    "create",
    [
        _default_group,
        _pair,
        _split_group,
        _shrunk_group,
        _reconfigured_group,
    ],
)
def test_a_rank_that_died_before_it_connected(
    launch: Launcher, tmp_path: Path, create: Any
) -> None:
    url = f"file://{tmp_path}/store"
    outcomes = launch.outcomes(_SIZE, run_in_torch, _use, url, {}, (create, str(tmp_path)))
    problems = [outcome.died or outcome.trace for outcome in outcomes if not outcome.ok]
    assert [problem for problem in problems if "SIGKILL" not in problem] == []
    assert len(problems) == 1
