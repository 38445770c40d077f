"""Fixtures: world() and any_world() run a function in processes that pynccl has initialized."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import gpu
from tests.support.in_world import run_in_world, world_runner
from tests.support.launcher import Launcher

pytest.importorskip("torch")


@pytest.fixture
def world(launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run ``function(dist, rank, size, *args)`` on every rank of a world and return the values.

    Options are those of the launcher, and ``init=`` for those of init_process_group.
    """
    return world_runner(launch, tmp_path, run_in_world)


@pytest.fixture
def any_world(launch: Launcher, tmp_path: Path, provider: str) -> Callable[..., list[Any]]:
    """Do the same with each provider; with "cuda", ranks create tensors on their GPU by default.

    gpu.spare() excludes some sizes there.
    """
    return mirror_runner(launch, tmp_path, provider)


def mirror_runner(launch: Launcher, tmp_path: Path, provider: str) -> Callable[..., list[Any]]:
    """Return any_world() for a provider."""
    run = world_runner(launch, tmp_path, run_in_world, provider=provider)

    def spared(nranks: int, *args: Any, **options: Any) -> list[Any]:
        gpu.spare(provider, nranks)
        return run(nranks, *args, **options)

    return spared
