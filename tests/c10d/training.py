"""A small model, its training, and the comparison of the results over gloo and pynccl."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.tier import FULL

__all__ = [
    "SIZES",
    "STEPS",
    "Values",
    "World",
    "batches",
    "check_same_as_over_gloo",
    "make_model",
    "train",
    "values",
]

World = Callable[..., list[Any]]
Values = list[list[float]]

STEPS = 10
# Operations of 4 ranks: test_collectives.py.
SIZES = (2, 4) if FULL else (2,)


def make_model(hidden: int = 33) -> nn.Sequential:
    """A model with the same parameters on every rank.

    Args:
        hidden: elements between the layers; the sizes of inputs and outputs are not divisible
            by the number of ranks.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(15, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 5)
    )


def batches(seed: int, steps: int = STEPS) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of the model."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randn(8, 15, generator=generator), torch.randn(8, 5, generator=generator)


def train(
    model: nn.Module,
    seed: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = STEPS,
) -> None:
    """Train a model.

    Args:
        model: a model with the inputs and outputs of make_model().
        seed: seed of the batches.
        optimizer: the optimizer; None is SGD with momentum.
        steps: number of steps.
    """
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in batches(seed, steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def values(tensors: Iterable[torch.Tensor]) -> Values:
    """The elements of tensors; for DTensors, those of all ranks."""
    whole = (t.full_tensor() if isinstance(t, dist.tensor.DTensor) else t for t in tensors)
    return [tensor.detach().double().flatten().tolist() for tensor in whole]


def check_same_as_over_gloo(
    world: World,
    nranks: int,
    function: Callable[..., Values],
    *args: object,
    tolerance: float = 1e-5,
    alike: bool = True,
    **options: Any,
) -> None:
    """Run a function on ranks over both backends and compare the results.

    Args:
        world: the fixture torch_world.
        nranks: number of ranks.
        function: called with the rank and the size.
        *args: arguments of the function.
        tolerance: absolute and relative.
        alike: whether all ranks must return identical results.
        **options: options of the launcher.
    """
    ours = world(nranks, function, *args, **options)
    options["init"] = {**options.get("init", {}), "backend": "gloo"}
    theirs = world(nranks, function, *args, **options)
    for own, other in zip(ours, theirs, strict=True):
        assert own, "nothing was trained"
        assert not alike or own == ours[0]
        for mine, expected in zip(own, other, strict=True):
            assert mine == pytest.approx(expected, rel=tolerance, abs=tolerance)
