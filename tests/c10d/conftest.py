"""Fixtures: torch_world() runs a function in processes that torch.distributed has initialized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.c10d.in_torch import run_in_torch, run_with_dist
from tests.mirror.conftest import any_world, mirror_runner, world
from tests.support import gpu
from tests.support.in_world import world_runner
from tests.support.launcher import Launcher
from tests.support.tier import FULL

__all__ = ["any_world", "world"]

pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """Build the backend before any rank needs it, because this exceeds a test's time limit."""
    from pynccl.c10d.build import build

    build()


@pytest.fixture
def torch_world(launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run ``function(rank, size, *args)`` on every rank of a world and return the values.

    Options are those of the launcher, and ``init=`` for those of init_process_group.
    """
    return world_runner(launch, tmp_path, run_in_torch)


@pytest.fixture
def device_world(launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    """torch_world() in which each rank has a GPU, its current device."""
    if reason := gpu.missing():
        pytest.skip(reason)
    return world_runner(launch, tmp_path, run_in_torch, provider="cuda")


@pytest.fixture
def backend_world(launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run ``function(dist, rank, size, *args)`` as torch_world() does; test_device.py runs some of
    these functions on GPUs.
    """
    return world_runner(launch, tmp_path, run_with_dist)


@pytest.fixture(params=["mirror", pytest.param("mirror on GPUs", marks=pytest.mark.gpu), "backend"])
def each_world(
    request: pytest.FixtureRequest, launch: Launcher, tmp_path: Path
) -> Callable[..., list[Any]]:
    """Do the same over the mirror and over the backend."""
    if request.param != "mirror on GPUs":
        return _on_host(request.param, launch, tmp_path)
    if reason := gpu.missing():
        pytest.skip(reason)
    run = mirror_runner(launch, tmp_path, "cuda")

    def spared(nranks: int, *args: Any, **options: Any) -> list[Any]:
        if nranks > 2 and not FULL:
            pytest.skip("make test-all has these sizes on GPUs")
        return run(nranks, *args, **options)

    return spared


@pytest.fixture(params=["mirror", "backend"])
def host_world(
    request: pytest.FixtureRequest, launch: Launcher, tmp_path: Path
) -> Callable[..., list[Any]]:
    """Do the same on hosts only, for behavior that differs on GPUs."""
    return _on_host(request.param, launch, tmp_path)


def _on_host(front_end: str, launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    if front_end == "mirror":
        return mirror_runner(launch, tmp_path, "host")
    return world_runner(launch, tmp_path, run_with_dist)
