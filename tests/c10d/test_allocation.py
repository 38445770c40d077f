"""Proves that tensors in memory from ncclMemAlloc work with the backend and with FSDP2."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pynccl import nccl
from tests.c10d.in_torch import backend_of
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@on_ranks(2)
def test_nccl_memory(rank: int, size: int) -> None:
    backend = backend_of()
    device = torch.device("cpu")
    assert backend.supports_tensor_alloc(device)
    for dtype in DTYPES:
        tensor = backend.allocate_tensor(1000, dtype=dtype, device=device)
        assert (tensor.shape, tensor.dtype, tensor.device) == ((1000,), dtype, device)
    assert backend.allocate_tensor(0, dtype=torch.float32, device=device).numel() == 0
    with pytest.raises(
        ValueError, match="size: expected a non-negative number of elements, got -1"
    ):
        backend.allocate_tensor(-1, dtype=torch.float32, device=device)
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=device).fill_(1)
    half = tensor[:500]
    del tensor
    gc.collect()
    dist.all_reduce(half)  # the memory lives as long as a view of it
    assert (half == size).all()
    # Only memory from ncclMemAlloc can be a window.
    comm = nccl.Communicator.borrow(dist.group.WORLD)
    comm.register_window(backend.allocate_tensor(1024, dtype=torch.float32, device=device)).close()


def _sharded(_rank: int, _size: int) -> list[torch.Tensor]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    fully_shard(model)
    if dist.get_backend() == "pynccl":
        model.set_allocate_memory_from_process_group_for_comm(True)
        backend, allocated = backend_of(), []
        allocate = type(backend).allocate_tensor

        def counted(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            allocated.append(1)
            return allocate(self, *args, **kwargs)

        type(backend).allocate_tensor = counted
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.full((2, 8), step + 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_backend() == "pynccl":
        type(backend).allocate_tensor = allocate
        assert allocated
    return [p.full_tensor().detach() for p in model.parameters()]


def test_fsdp2_allocates_from_the_backend(torch_world: World) -> None:
    device_mesh = {"init": {"backend": "gloo"}}
    ours = torch_world(2, _sharded, timeout=90)
    gloo = torch_world(2, _sharded, timeout=90, **device_mesh)
    for mine, theirs in zip(ours, gloo, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
