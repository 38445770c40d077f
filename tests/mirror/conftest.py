"""Fixtures: world() runs a function in processes that pynccl has initialised."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_world import run_in_world
from launcher import Launcher

pytest.importorskip("torch")


@pytest.fixture
def world(launch: Launcher, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run ``function(dist, rank, size, *args)`` on every rank of a world and return the values.

    Options are those of the launcher, and ``init=`` for those of init_process_group.
    """
    numbers = itertools.count()

    def run(
        nranks: int,
        function: Callable[..., Any],
        *args: object,
        init: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[Any]:
        url = f"file://{tmp_path}/store{next(numbers)}"
        return launch(nranks, run_in_world, function, url, init or {}, args, **options)

    return run
