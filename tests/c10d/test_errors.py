"""Proves that wrong arguments are errors that name the argument, with nothing sent, and that the
death of a rank is an error on the others.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pynccl
from pynccl import nccl
from tests.c10d.in_torch import run_with_dist
from tests.support.in_world import run_in_world
from tests.support.launcher import Launcher
from tests.support.overlaps import check_overlaps
from tests.support.ranks import on_ranks


@on_ranks(2)
def test_mistakes_name_the_argument(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    ones = torch.ones(4, 4)
    everywhere = [torch.empty(4, 4) for _ in range(size)]
    with pytest.raises(ValueError, match=r"tensor: it is not contiguous: sizes \[4, 2\]"):
        dist.all_reduce(ones[:, :2])
    with pytest.raises(ValueError, match=r"BAND.*no bitwise"):
        dist.all_reduce(torch.ones(1, dtype=torch.int64), dist.ReduceOp.BAND)
    with pytest.raises(TypeError, match="tensor: NCCL cannot reduce dtype Short"):
        dist.all_reduce(torch.ones(1, dtype=torch.int16))
    with pytest.raises(TypeError, match="AVG with Boolean"):
        dist.all_reduce(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG)
    with pytest.raises(ValueError, match=f"tensor_list: expected {size} tensors, one for each"):
        group.allgather([everywhere[1:]], [ones])
    with pytest.raises(ValueError, match="tensor_list: expected 16 elements, got 1"):
        group.allgather([[torch.empty(1)] * size], [ones])
    with pytest.raises(TypeError, match="tensor_list: it has dtype"):
        group.allgather([[torch.empty(4, 4).double()] * size], [ones])
    with pytest.raises(ValueError, match="output_tensor: expected 32 elements, got 16"):
        group._allgather_base(ones, torch.ones(4, 4))
    with pytest.raises(ValueError, match="input: expected"):
        group._reduce_scatter_base(torch.empty(3), ones)
    with pytest.raises(ValueError, match="src: the group has ranks 0 to 1"):
        group.broadcast(ones, 7)
    with pytest.raises(TypeError, match="output: it has dtype"):
        group.alltoall_base(ones.double(), ones, [], [])
    with pytest.raises(ValueError, match="split sizes must add up to its first dimension"):
        dist.all_to_all_single(torch.empty(4, 4), ones, [1, 3], [1, 1])
    dist.all_reduce(ones)  # nothing was sent before
    assert ones[0, 0].item() == float(size)


@on_ranks(2, fixture="each_world")
def test_overlaps_are_refused(dist: Any, rank: int, size: int) -> None:
    check_overlaps(dist, rank)


@on_ranks(2)
def test_lazily_negated_outputs_keep_their_values(rank: int, size: int) -> None:
    """As docs/c10d.md says: torch passes a copy on, so that an output keeps its old values."""
    x = torch.tensor([1 + 2j, 3 - 1j])
    negated = x.conj().imag
    assert negated.is_neg()
    dist.all_reduce(negated)
    assert negated.tolist() == [-2, 1]
    assert x.tolist() == [1 + 2j, 3 - 1j]
    gathered = [torch.empty(2) for _ in range(size)]
    dist.all_gather(gathered, negated)  # an input is read as it should be
    assert all(one.tolist() == [-2, 1] for one in gathered)
    resolved = negated.resolve_neg()
    dist.all_reduce(resolved)
    assert resolved.tolist() == [-2 * size, size]
    with pytest.raises(RuntimeError, match="conjugated"):
        dist.all_reduce(x.conj())


def _dies(dist: Any, rank: int, size: int, async_op: bool) -> None:
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match="rank 1") as caught:  # noqa: PT012
        for _ in range(3):  # rank 1 may die after it has taken part
            work = dist.all_reduce(torch.ones(1), async_op=async_op)
            if work is not None:
                work.wait()
    assert "all_reduce" in str(caught.value).replace("AllReduce", "all_reduce")
    if async_op:
        assert str(work.exception()) == str(caught.value)
        assert not work.is_success()
        for wait in (work.wait, work.get_future().wait):
            with pytest.raises(RuntimeError):
                wait()
    assert isinstance(caught.value, nccl.NcclRemoteError) == (dist is pynccl)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("enter", [run_in_world, run_with_dist])
def test_death_of_a_rank(launch: Launcher, tmp_path: Path, enter: Any, async_op: bool) -> None:
    url = f"file://{tmp_path}/store"
    outcomes = launch.outcomes(3, enter, _dies, url, {}, (async_op,), timeout=60)
    assert outcomes[1].died == "killed by SIGKILL"
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].trace
