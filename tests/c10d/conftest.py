"""Fixtures: torch_world() runs a function in processes that torch.distributed has initialised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.c10d.in_torch import run_in_torch
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
