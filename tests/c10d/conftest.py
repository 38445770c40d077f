"""Fixtures: torch_world() runs a function in processes that torch.distributed has initialised."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.c10d.in_torch import run_in_torch, run_on_device
from tests.support import gpu
from tests.support.in_world import world_runner
from tests.support.launcher import Launcher

pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """Build the backend before any rank needs it: that takes longer than a test may."""
    from pynccl.c10d.build import build

    build()


@pytest.fixture
def torch_world(launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run ``function(rank, size, *args)`` on every rank of a world and return the values.

    Options are those of the launcher, and ``init=`` for those of init_process_group.
    """
    return world_runner(launch, tmp_path, run_in_torch)


@pytest.fixture(scope="session")
def _device() -> None:
    """On the double, build the CUDA device for torch's own tensors."""
    if reason := gpu.missing():
        pytest.skip(reason)
    if libraries := os.environ.get("CUDA_DOUBLE_LIBRARIES"):
        from tests.doubles.build import build_device

        build_device(Path(libraries))


@pytest.fixture
def device_world(launch: Launcher, tmp_path: Path, _device: None) -> Callable[..., list[Any]]:
    """torch_world() in which each rank has a GPU, its current device."""
    run = world_runner(launch, tmp_path, run_on_device, env={"CUDA_DOUBLE_TENSORS": "device"})

    def checked(nranks: int, *args: Any, **options: Any) -> list[Any]:
        if gpu.count() < nranks:
            pytest.skip(f"needs {nranks} GPUs")
        return run(nranks, *args, **options)

    return checked
