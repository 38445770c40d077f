"""Proves torch's time estimates over the backend: nothing runs, and the times are NCCL's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from pynccl import nccl
from tests.c10d.in_torch import backend_of, cpu_communicator
from tests.support.ranks import on_ranks


def _records() -> int:
    sequence: int = cpu_communicator().flight_record()[-1].sequence
    return sequence


@on_ranks(2, 4)
def test_operations_of_an_estimate_are_not_run(rank: int, size: int) -> None:
    dist.barrier()
    issued = _records()
    number = backend_of()._get_sequence_number_for_group()
    tensor, parts = torch.full((1000,), float(rank)), torch.zeros(size, 1000)
    with dist._time_estimator() as estimate:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        work = dist.all_gather_into_tensor(parts, tensor, async_op=True)
        dist.all_gather(list(parts), tensor)
        dist.reduce_scatter_tensor(torch.zeros(10), torch.ones(10 * size))
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
        dist.barrier()
        work.wait()
        assert work.is_completed()
        assert work.get_future().wait()[0] is not None
    assert estimate.estimated_time is not None
    assert estimate.estimated_time > 0
    assert torch.equal(tensor, torch.full((1000,), float(rank)))
    assert not parts.any()
    assert _records() == issued
    assert backend_of()._get_sequence_number_for_group() == number
    dist.all_reduce(tensor)
    assert tensor[0].item() == sum(range(size))


def _estimated(run: Callable[[], object]) -> float:
    with dist._time_estimator() as estimate:
        run()
    assert estimate.estimated_time is not None
    return estimate.estimated_time


@on_ranks(2)
def test_times_are_those_of_simulate(rank: int, size: int) -> None:
    small, large = torch.zeros(10), torch.zeros(10**7)
    dist.all_reduce(small)
    comm = cpu_communicator()
    with nccl.simulate() as simulated:
        comm.all_reduce(large)
    assert simulated.estimated_time is not None
    one = _estimated(lambda: dist.all_reduce(large))
    assert one == pytest.approx(simulated.estimated_time * 1e6, rel=1e-5)  # microseconds
    assert one > _estimated(lambda: dist.all_reduce(small))
    two = _estimated(lambda: [dist.all_reduce(large), dist.all_reduce(large)])
    assert two == pytest.approx(2 * one, rel=1e-5)
    assert _estimated(lambda: None) == 0

    def coalesced() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(large)
            dist.all_reduce(torch.zeros_like(large))

    assert _estimated(coalesced) == pytest.approx(two, rel=0.5)
    assert not large.any()


@on_ranks(2)
def test_operations_without_estimates(rank: int, size: int) -> None:
    backend = backend_of()
    dist.barrier()
    with pytest.raises(ValueError, match="time estimate: not started"):
        backend._end_time_estimate()
    tensor = torch.zeros(size)
    for name, run in {
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(size), tensor),
        "send": lambda: dist.send(tensor, (rank + 1) % size),
        "gather": lambda: dist.gather(
            tensor, [torch.zeros(size) for _ in range(size)] if rank == 0 else None
        ),
    }.items():
        backend._start_time_estimate()
        dist.all_reduce(tensor)
        run()
        with pytest.raises(ValueError, match=f"{name} consists of messages"):
            backend._end_time_estimate()
    # The next estimate discards one that an exception left unfinished.
    with pytest.raises(ZeroDivisionError):
        _estimated(lambda: [dist.all_reduce(torch.zeros(10**7)), 1 / 0])
    assert _estimated(lambda: None) == 0
    dist.all_reduce(tensor.fill_(1))
    assert tensor[0].item() == size


@on_ranks(2)
def test_a_failed_estimate_has_ended(rank: int, size: int) -> None:
    dist.barrier()
    backend = backend_of()
    comm = cpu_communicator()
    backend._start_time_estimate()
    dist.all_reduce(torch.zeros(3))
    comm.close()
    with pytest.raises(dist.DistBackendError, match=r"time estimate: all_reduce: .*closed"):
        backend._end_time_estimate()
    with pytest.raises(ValueError, match="time estimate: not started"):
        backend._end_time_estimate()
