"""Proves that a trace contains the backend's operations and the waits for them."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from pynccl import nccl
from pynccl.tools.trace.exposure import WAITS, exposed
from tests.c10d.in_torch import set_event, wait_event
from tests.support.blocking import when_blocked
from tests.support.ranks import on_ranks

_LATE = 0.2  # seconds


def _exchange(x: torch.Tensor, peer: int) -> None:
    for work in [dist.isend(x, peer), dist.irecv(torch.empty(1000), peer)]:
        work.wait()


@on_ranks(2)
def test_waits_of_works_are_traced(rank: int, size: int) -> None:
    x = torch.ones(1000)
    dist.all_reduce(x)  # connects
    _exchange(x, 1 - rank)
    dist.barrier()
    with nccl.trace() as traced:
        if rank == 1:
            wait_event("blocked")
            time.sleep(_LATE)
        else:
            when_blocked(lambda: set_event("blocked"))
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        _exchange(x, 1 - rank)
    trace = traced.process
    assert trace is not None
    reduce, *messages = trace.operations
    assert reduce.kind == "all_reduce"
    assert {one.kind for one in messages} == {"send", "recv"}
    first, *others = trace.waits
    assert (first.what, first.on_device) == ("work", False)
    assert (first.communicator, first.sequence) == (reduce.communicator, reduce.sequence)
    assert first.thread == trace.pid
    assert {(one.communicator, one.sequence) for one in others} == {
        (one.communicator, one.sequence) for one in messages
    }
    assert first.ended is not None
    if rank == 0:
        assert first.ended - first.began > 0.9 * _LATE * 1e9
        found = exposed(trace)
        assert found.definition == WAITS
        assert found.operations[0] == pytest.approx(first.ended - first.began)


@pytest.mark.gpu
@on_ranks(2, fixture="device_world")
def test_waits_of_streams_are_traced(rank: int, size: int) -> None:
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    with nccl.trace() as traced:
        dist.all_reduce(x, async_op=True).wait()
        torch.cuda.synchronize()
    trace = traced.process
    assert trace is not None
    (reduce,) = trace.operations
    (wait,) = [one for one in trace.waits if one.what == "work"]
    assert wait.on_device
    assert (wait.communicator, wait.sequence) == (reduce.communicator, reduce.sequence)
    assert wait.stream == torch.cuda.current_stream().cuda_stream
    assert wait.stream != reduce.stream
