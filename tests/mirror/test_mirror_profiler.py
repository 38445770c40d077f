"""Proves that torch's profiler shows every operation of the mirror as a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.ranks import on_ranks

pytest.importorskip("torch")


def _calls(dist: Any, rank: int, size: int, torch: Any) -> dict[str, Callable[[], Any]]:
    """An operation of each kind, by the names of its ranges."""
    peer = 1 - rank
    tensor, wide = torch.ones(2), torch.ones(2 * size)
    parts = [torch.ones(2) for _ in range(size)]
    root = rank == 0

    def batch() -> None:
        operations = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, wide[:2], peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def send_and_receive() -> None:
        sending = dist.isend(tensor, peer)
        dist.recv(wide[:2], peer)
        sending.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "reduce": lambda: dist.reduce(tensor, 1, dist.ReduceOp.MAX),
        "all_gather_single": lambda: dist.all_gather_single(wide, tensor, async_op=True).wait(),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(tensor, wide),
        "all_gather": lambda: dist.all_gather(parts, tensor),
        "gather": lambda: dist.gather(tensor, parts if root else None),
        "scatter": lambda: dist.scatter(tensor, parts if root else None),
        "reduce_scatter": lambda: dist.reduce_scatter(tensor, parts),
        "all_to_all": lambda: dist.all_to_all(parts, [tensor] * size),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(2 * size), wide),
        "barrier": dist.barrier,
        "coalesced irecv, isend": batch,
        "send, recv": send_and_receive,
    }


@on_ranks(2)
def test_operations_are_ranges_of_a_profiler(dist: Any, rank: int, size: int) -> None:
    calls = _calls(dist, rank, size, torch)
    for call in calls.values():  # set up before profiling
        call()
    batch = "coalesced irecv, isend"
    kinds = [batch, *(kind for key in calls if key != batch for kind in key.split(", "))]
    for profile in (torch.profiler.profile, torch.autograd.profiler.profile):
        with profile() as profiled:
            for call in calls.values():
                call()
            whole = torch.ones(2 * size)
            with pytest.raises(ValueError, match="output: overlaps input"):
                dist.reduce_scatter_single(whole[1:3], whole)
        counts = {event.key: event.count for event in profiled.key_averages()}
        found = {key: count for key, count in counts.items() if key.startswith("pynccl:")}
        expected = {f"pynccl:{kind}": 1 for kind in kinds}
        expected["pynccl:reduce_scatter_single"] = 2
        assert found == expected


@on_ranks(1)
def test_a_profiler_already_running(dist: Any, rank: int, size: int) -> None:
    with torch.profiler.profile() as profiled:
        dist.destroy_process_group()
        dist.init_process_group("host", store=torch.distributed.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
    assert "pynccl:all_reduce" in {event.key for event in profiled.key_averages()}
