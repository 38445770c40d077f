"""A fixture that forks the ranks of the lab's commands from a process with torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pynccl.testing import Launcher
from pynccl.tools import bench
from pynccl.tools.lab import world
from tests.support import warm


class _Forks(Launcher):
    _start_process = warm.start_rank


@pytest.fixture(scope="session", autouse=True)
def _forked_ranks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (world, bench):
            patch.setattr(module, "Launcher", _Forks)
        yield
