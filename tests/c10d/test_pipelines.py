"""Proves that pipelines with the schedules GPipe and 1F1B train over the backend as over gloo:
equal parameters after 10 steps, with a rank between the first and the last.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.c10d.training import STEPS, Values, World, check_same_as_over_gloo, values
from tests.support.tier import FULL

_PIECES = 8  # microbatches


def _trained(rank: int, size: int, schedule_name: str) -> Values:
    from torch.distributed import pipelining  # takes seconds

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    part = nn.Sequential(nn.Linear(15, 15), nn.Tanh(), nn.Linear(15, 15))
    stage = pipelining.PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = getattr(pipelining, schedule_name)(stage, _PIECES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    losses: list[torch.Tensor] = []
    for _ in range(STEPS):
        inputs = torch.randn(16, 15, generator=generator)
        targets = torch.randn(16, 15, generator=generator)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
    assert len(losses) == (_PIECES if rank == size - 1 else 0)
    return values([*part.parameters(), *losses])


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize("nranks", [2, 3, 4] if FULL else [3])
def test_same_parameters_as_over_gloo(torch_world: World, nranks: int, name: str) -> None:
    check_same_as_over_gloo(torch_world, nranks, _trained, name, alike=False)
