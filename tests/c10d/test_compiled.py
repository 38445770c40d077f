"""Proves that functional collectives over the backend compile without graph breaks, and that
compiled and eager training result in the parameters of eager training over gloo.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

from tests.c10d.training import STEPS, Values, World, check_same_as_over_gloo, values
from tests.support.tier import FULL


def _trained(rank: int, size: int, backend: str, steps: int) -> Values:
    """Steps of a data-parallel model whose collectives are in the compiled function."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    group = dist.group.WORLD
    others = list(range(size))[::-1]
    weight = torch.randn(6, 6)

    def step(weight: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = (inputs @ weight).tanh()
        gathered = collectives.all_gather_tensor(hidden, 0, group)
        scattered = collectives.reduce_scatter_tensor(gathered.sin(), "sum", 0, group)
        swapped = collectives.all_to_all_single(scattered, None, None, group)
        moved = collectives.permute_tensor(swapped.flatten(), others, group)
        [coalesced] = collectives.all_reduce_coalesced([moved * 0.5], "sum", group)
        first = collectives.broadcast(coalesced, 0, group)
        gradient = inputs.t() @ (hidden - first.view_as(hidden))
        total = collectives.all_reduce(gradient, "sum", group)
        return weight - 0.01 * total, first

    # One rank compiles, which takes seconds; the others issue the same operations.
    compiles = rank == 0 and dist.get_backend() == "pynccl"
    compiled = torch.compile(step, fullgraph=True, backend=backend) if compiles else step
    generator = torch.Generator().manual_seed(rank)
    eager = weight
    for _ in range(steps):
        inputs = torch.randn(size, 6, generator=generator)
        weight, found = compiled(weight, inputs)
        eager, expected = step(eager, inputs)
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(weight, eager)
    torch._dynamo.reset()
    return values([weight, found])


@pytest.mark.parametrize("nranks", [2, 4] if FULL else [2])
def test_compiled_as_over_gloo(torch_world: World, nranks: int) -> None:
    options: dict[str, Any] = {"init": {"timeout": timedelta(seconds=100)}, "timeout": 120}
    check_same_as_over_gloo(torch_world, nranks, _trained, "aot_eager", STEPS, **options)


@pytest.mark.skipif(not FULL, reason="the compiler takes half a minute: `make test-all`")
def test_compiled_to_machine_code(torch_world: World, tmp_path: Path) -> None:
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    options: dict[str, Any] = {"init": {"timeout": timedelta(seconds=200)}, "timeout": 240}
    ours = torch_world(2, _trained, "inductor", 3, env=env, fresh=True, **options)
    assert ours[0] == ours[1]
