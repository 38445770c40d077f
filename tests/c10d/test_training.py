"""Proves that DDP and FSDP2 train over the backend as over gloo: equal parameters after 10 steps,
with 2 and 4 ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

World = Callable[..., list[Any]]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


def _ddp(model: nn.Sequential, _size: int) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, bucket_cap_mb=0.004)  # several buckets


def _hooked_ddp(model: nn.Sequential, size: int) -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    ddp = _ddp(model, size)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)  # type: ignore[operator]
    return ddp


def _fsdp(model: nn.Sequential, size: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


_WAYS = {"ddp": _ddp, "hooked_ddp": _hooked_ddp, "fsdp": _fsdp}


def _trained(rank: int, size: int, way: str) -> list[list[float]]:
    torch.set_num_threads(1)
    model = _WAYS[way](_model(), size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(10):
        inputs = torch.randn(8, 16, generator=generator)
        targets = torch.randn(8, 4, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    whole = [
        p.full_tensor() if isinstance(p, dist.tensor.DTensor) else p for p in model.parameters()
    ]
    return [parameter.detach().flatten().tolist() for parameter in whole]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("nranks", [2, 4])
def test_same_parameters_as_over_gloo(torch_world: World, nranks: int, way: str) -> None:
    ours = torch_world(nranks, _trained, way)
    theirs = torch_world(nranks, _trained, way, init={"backend": "gloo"})
    for rank in range(nranks):
        assert ours[rank] == ours[0]
        for own, other in zip(ours[rank], theirs[rank], strict=True):
            tolerance = 1e-2 if way == "hooked_ddp" else 1e-5
            assert own == pytest.approx(other, rel=tolerance, abs=tolerance)
