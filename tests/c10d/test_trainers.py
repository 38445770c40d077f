"""Proves that Lightning Fabric and Hugging Face accelerate, unmodified, train over the backend as
over gloo: equal parameters after 10 steps, with 2 and 4 ranks.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.c10d.training import (
    SIZES,
    Values,
    World,
    batches,
    check_same_as_over_gloo,
    make_model,
    values,
)
from tests.support.commands import free_port
from tests.support.launcher import Launcher
from tests.support.rank import Rank

pytest.importorskip("lightning_fabric")
pytest.importorskip("accelerate")


def _fabric(rank: Rank, backend: str, port: int) -> Values:
    """Fabric creates the process group itself."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    import pynccl.c10d  # noqa: F401 - it registers the backend

    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "LOCAL_RANK": str(rank.rank),
        "NODE_RANK": "0",
    }
    with mock.patch.dict(os.environ, environment):
        fabric = Fabric(
            accelerator="cpu",
            devices=rank.nranks,
            strategy=DDPStrategy(process_group_backend=backend),
        )
        fabric.launch()
        try:
            assert dist.get_backend() == backend
            return _trained_by(fabric)
        finally:
            dist.destroy_process_group()


def _trained_by(fabric: Any) -> Values:
    """Free the model before the process group, whose threads may still use it."""
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for inputs, targets in batches(fabric.global_rank):
        optimizer.zero_grad()
        fabric.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
    gathered = fabric.all_gather(torch.tensor(float(fabric.global_rank)))
    return values([*model.parameters(), gathered])


@pytest.mark.parametrize("nranks", SIZES)
def test_fabric(launch: Launcher, nranks: int) -> None:
    results = []
    for backend in ("pynccl", "gloo"):
        results.append(launch(nranks, _fabric, backend, free_port()))
    ours, theirs = results
    assert ours == [ours[0]] * nranks
    for mine, expected in zip(ours[0], theirs[0], strict=True):
        assert mine == pytest.approx(expected, rel=1e-5, abs=1e-5)


def _accelerated(rank: int, size: int) -> Values:
    """On CPUs accelerate creates only gloo groups, but uses an existing group."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }
    with mock.patch.dict(os.environ, environment):
        try:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            model, optimizer = accelerator.prepare(model, optimizer)
            for inputs, targets in batches(rank, steps=20):
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                    optimizer.step()
                    optimizer.zero_grad()
            assert accelerator.num_processes == size
            gathered = accelerator.gather(torch.tensor([float(accelerator.process_index)]))
            accelerator.wait_for_everyone()
            return values([*model.parameters(), gathered])
        finally:
            for state in (AcceleratorState, GradientState, PartialState):
                state._reset_state()


@pytest.mark.parametrize("nranks", SIZES)
def test_accelerate(torch_world: World, nranks: int) -> None:
    check_same_as_over_gloo(torch_world, nranks, _accelerated)
