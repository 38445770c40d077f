"""Proves that DDP with its options and hooks, Join, and ZeroRedundancyOptimizer train over the
backend as over gloo: equal parameters after 10 steps, with 2 and 4 ranks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from tests.c10d.training import (
    SIZES,
    Values,
    World,
    batches,
    check_same_as_over_gloo,
    make_model,
    train,
    values,
)

_SMALL = 0.004  # MB of a bucket, so that there are several


class _WithUnused(nn.Module):
    """One of its layers is used only by even ranks, another by none."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._uses = rank % 2 == 0
        self.main = make_model()
        self.sometimes = nn.Linear(15, 5)
        self.never = nn.Linear(15, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.main(x)
        return y + self.sometimes(x) if self._uses else y


def _ddp(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=_SMALL, **options)


def _plain(rank: int, _size: int, **options: Any) -> nn.Module:
    model = _ddp(make_model(), **options)
    train(model, rank)
    return model


def _unused(rank: int, _size: int) -> nn.Module:
    model = _ddp(_WithUnused(rank), find_unused_parameters=True)
    train(model, rank)
    return model


def _no_sync(rank: int, _size: int) -> nn.Module:
    """Gradients of two batches are accumulated before they are exchanged."""
    model = _ddp(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number, (inputs, targets) in enumerate(batches(rank, steps=20)):
        accumulates = number % 2 == 0
        with model.no_sync() if accumulates else contextlib.nullcontext():
            nn.functional.mse_loss(model(inputs), targets).backward()
        if not accumulates:
            optimizer.step()
            optimizer.zero_grad()
    return model


def _hooked(
    rank: int, hook: Callable[..., Any], state: Any = None, *, bucket: float = _SMALL
) -> nn.Module:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=bucket)
    model.register_comm_hook(state, hook)
    train(model, rank)
    return model


def _fp16(rank: int, _size: int) -> nn.Module:
    return _hooked(rank, default_hooks.fp16_compress_hook)


def _bf16(rank: int, _size: int) -> nn.Module:
    # Torch's hook under another name, because DDP requires a GPU for torch's own.
    hook = default_hooks.bf16_compress_hook
    return _hooked(rank, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108


_KEPT: list[Any] = []


def _power_sgd(rank: int, _size: int) -> nn.Module:
    if dist.get_backend() == "gloo":
        # A gloo thread frees the callbacks, perhaps after the end. If that freed the group, the
        # thread would wait for itself.
        _KEPT.append(dist.group.WORLD)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    # One bucket: the hook issues in callbacks, and gloo runs them on several threads. With several
    # buckets the ranks may issue in different orders.
    return _hooked(rank, powerSGD_hook.powerSGD_hook, state, bucket=1)


def _join(rank: int, _size: int) -> nn.Module:
    """Every rank has one batch more than the previous rank."""
    model = _ddp(make_model())
    with Join([model]):
        train(model, rank, steps=10 + rank)
    return model


def _zero(rank: int, _size: int) -> nn.Module:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # it compiles when it is imported

    model = _ddp(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, rank, optimizer=optimizer)
    return model


_WAYS = {
    "plain": _plain,
    "static_graph": functools.partial(_plain, static_graph=True),
    "unused": _unused,
    "bucket_view": functools.partial(_plain, gradient_as_bucket_view=True),
    "no_sync": _no_sync,
    "fp16": _fp16,
    "bf16": _bf16,
    "power_sgd": _power_sgd,
    "join": _join,
    "zero": _zero,
}

# Sums in these dtypes depend on their order by this much, which differs between backends.
_ROUNDING = {"fp16": 1e-3, "bf16": 1e-2}


def _trained(rank: int, size: int, way: str) -> Values:
    return values(_WAYS[way](rank, size).parameters())


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("nranks", SIZES)
def test_same_parameters_as_over_gloo(torch_world: World, nranks: int, way: str) -> None:
    tolerance = _ROUNDING.get(way, 1e-5)
    check_same_as_over_gloo(torch_world, nranks, _trained, way, tolerance=tolerance)
