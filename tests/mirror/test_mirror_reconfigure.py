"""Proves init_process_group(enable_reconfigure=True), on 2 and 4 ranks: the default group gets the
ranks whose handles are given, in their order, new processes among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.handles import exchange_handles
from tests.support.launcher import Launcher
from tests.support.rank import Rank

World = Callable[..., list[Any]]

sizes = pytest.mark.parametrize("nranks", [2, 4])


def _sum_is_right(dist: Any, ranks: int, group: Any = None) -> None:
    import torch

    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value, group=group)
    assert value.item() == sum(range(ranks))


def _handles(folder: str, uuid: int, dist: Any, key: int, ranks: int) -> list[str]:
    return exchange_handles(folder, uuid, dist._get_reconfigure_handle(), key, ranks)


def _reconfigured(process: Rank, size: int, folder: str) -> tuple[int, int]:
    """Reversed ranks; then without the first process; then with a new one in its place."""
    import torch

    import pynccl as dist

    rank = process.rank
    newcomer = rank == size - 1
    size -= 1  # the last process comes later, with a rank of its own
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(
        "host",
        store=store,
        rank=0 if newcomer else rank,
        world_size=size,
        enable_reconfigure=True,
    )
    pg = dist.group.WORLD
    assert dist._supports_reconfigure()
    if not newcomer:
        assert (pg.rank(), pg.size()) == (rank, size)
        for call in (
            lambda: dist.all_reduce(torch.ones(1)),
            lambda: dist.isend(torch.ones(1), dst=(rank + 1) % size),
            dist.new_group,
            dist.reconfigure,
        ):
            with pytest.raises(RuntimeError, match="Call reconfigure"):
                call()
        every = _handles(folder, 1, dist, rank, size)
        _errors_of_reconfigure(dist, every)
        work = dist._reconfigure(1, every[::-1])
        assert work.wait()
        assert work.is_success()
        mine = size - 1 - rank
        assert (dist.get_rank(), dist.get_world_size()) == (mine, size)
        assert dist.get_process_group_ranks(None) == list(range(size))
        _sum_is_right(dist, size)
        with pytest.raises(ValueError, match="uuid: 1 was used before"):
            dist._reconfigure(1, every)
        sub = dist.new_group()
        _sum_is_right(dist, size, sub)
        value = torch.tensor([mine])
        if mine == 0:
            dist.send(value, dst=size - 1)
        elif mine == size - 1:
            dist.recv(value, src=0)
            assert value.item() == 0
        dist.barrier()
        if rank == 0:
            dist.destroy_process_group()
            return -1, -1
        every = _handles(folder, 2, dist, rank, size - 1)
        # A set: sorted by the handles.
        dist._reconfigure(2, set(every), timeout=timedelta(seconds=60))
        assert dist.get_rank() == sorted(every).index(dist._get_reconfigure_handle())
        assert dist.get_world_size() == size - 1
        assert dist.group.WORLD is pg
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.all_reduce(value, group=sub)
        _sum_is_right(dist, size - 1)
    every = _handles(folder, 3, dist, rank, size)
    dist._reconfigure(3, every)
    assert dist.get_world_size() == size
    _sum_is_right(dist, size)
    _sum_is_right(dist, size, dist.new_group())
    value = torch.zeros(1)
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), dst=size - 1)
    elif dist.get_rank() == size - 1:
        dist.recv(value, src=0)
        assert value.item() == 1
    dist.barrier()
    found = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    return found


def _errors_of_reconfigure(dist: Any, every: list[str]) -> None:
    own = dist._get_reconfigure_handle()
    others = [handle for handle in every if handle != own]
    for handles, kind, text in (
        (others, ValueError, "own is not among"),
        ([own, own], ValueError, "given twice"),
        ([own, "x"], ValueError, "is not a handle of pynccl"),
        ([own, json.dumps([1, 2])], ValueError, "is not a handle of pynccl"),
        ([own, 5], TypeError, "expected texts"),
        (own, TypeError, "expected a list or a set"),
    ):
        with pytest.raises(kind, match=text):
            dist._reconfigure(1, handles)
    with pytest.raises(TypeError, match="uuid: expected an integer"):
        dist._reconfigure("1", every)
    with pytest.raises(TypeError, match="timeout: expected"):
        dist._reconfigure(1, every, timeout=5)
    with pytest.raises(ValueError, match="hints"):
        dist._reconfigure(1, every, hints={"a": "b"})


@sizes
def test_reconfigure(launch: Launcher, tmp_path: Path, nranks: int) -> None:
    results = launch(nranks + 1, _reconfigured, nranks + 1, str(tmp_path))
    assert sorted(results) == [(-1, -1)] + [(rank, nranks) for rank in range(nranks)]


def _not_reconfigurable(dist: Any, rank: int, size: int) -> None:
    assert not dist._supports_reconfigure()
    with pytest.raises(RuntimeError, match="enable_reconfigure=True"):
        dist._reconfigure(1, [dist._get_reconfigure_handle()])
    _sum_is_right(dist, size)


@sizes
def test_a_group_that_cannot_be_reconfigured(world: World, nranks: int) -> None:
    world(nranks, _not_reconfigurable)
