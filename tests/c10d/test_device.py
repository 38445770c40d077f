"""Proves that the backend orders operations on CUDA tensors as torch promises it: by streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support import gpu

World = Callable[..., list[Any]]

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    """On the double, build the CUDA device for torch's own tensors."""
    if libraries := os.environ.get("CUDA_DOUBLE_LIBRARIES"):
        from tests.doubles.build import build_device

        build_device(Path(libraries))


@pytest.fixture
def device_world(torch_world: World) -> World:
    """torch_world() with a GPU for each rank, which is its current device."""
    if reason := gpu.missing():
        pytest.skip(reason)

    def run(nranks: int, function: Callable[..., Any], *args: object, **options: Any) -> list[Any]:
        if gpu.count() < nranks:
            pytest.skip(f"needs {nranks} GPUs")
        env = {"CUDA_DOUBLE_TENSORS": "device", **options.pop("env", {})}
        return torch_world(nranks, _on_device, function, args, env=env, **options)

    return run


def _on_device(rank: int, size: int, function: Callable[..., Any], args: tuple[object, ...]) -> Any:
    torch.cuda.set_device(rank)
    return function(rank, size, *args)


def _one(rank: int, _size: int) -> None:
    x = torch.full((5,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 5
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.tolist() == [6.0] * 5


def test_one(device_world: World) -> None:
    device_world(2, _one)
