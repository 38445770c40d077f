"""Proves that tensors in memory from ncclMemAlloc work with the backend and with FSDP2."""

from __future__ import annotations

import gc
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pynccl import nccl
from tests.c10d.in_torch import backend_of
from tests.c10d.training import (
    Values,
    World,
    check_same_as_over_gloo,
    make_model,
    train,
    values,
)
from tests.support.ranks import on_ranks

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


def _sharded(rank: int, _size: int) -> Values:
    from torch.distributed.fsdp import fully_shard

    model: Any = make_model()
    fully_shard(model)
    if dist.get_backend() == "gloo":
        train(model, rank)
        return values(model.parameters())
    model.set_allocate_memory_from_process_group_for_comm(True)
    backend = type(backend_of())
    allocate = mock.Mock(side_effect=backend.allocate_tensor)
    method = lambda *args, **options: allocate(*args, **options)  # noqa: E731, PLW0108 - bound
    with mock.patch.object(backend, "allocate_tensor", method):
        train(model, rank)
    assert allocate.called
    return values(model.parameters())


def test_fsdp2_allocates_from_the_backend(torch_world: World) -> None:
    check_same_as_over_gloo(torch_world, 2, _sharded, timeout=90)
