"""Fixtures that all tests use: launch() starts ranks, and provider() is each provider in turn."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from pynccl.testing import Launcher as ToolLauncher
from pynccl.testing import Run
from tests.support import gpu
from tests.support.launcher import Launcher
from tests.support.tier import FULL
from tests.support.turns import (
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_runtest_protocol,
)

__all__ = [
    "kept_ranks",
    "launch",
    "provider",
    "pytest_collection_modifyitems",
    "pytest_configure_node",
    "pytest_runtest_protocol",
]

# hostnccl is as strict as NCCL in all tests; see tests/hostnccl/test_strict.py.
os.environ.setdefault("HOSTNCCL_STRICT", "1")
# Many tests leave a first operation pending. tests/rules and the double connect ranks in the call.
os.environ.setdefault("HOSTNCCL_CONNECT", "0")
# The same thresholds in every run; tests/hostnccl/test_tuning.py measures them.
os.environ.setdefault("HOSTNCCL_TUNING", "off")

# The same generated examples in every run, and others each night. No example has a time limit,
# which a busy machine exceeds.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("short", derandomize=True, database=None, deadline=None)
    settings.register_profile("full", deadline=None)
    settings.load_profile("full" if FULL else "short")

# The double's own tests need it active: python -m pytest -p tests.doubles.plugin tests/doubles
collect_ignore = [] if "CUDA_DOUBLE_LIBRARIES" in os.environ else ["doubles"]


@pytest.fixture(scope="session")
def launch() -> Iterator[Launcher]:
    """Run a function as the ranks of a world: see launcher.Launcher."""
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def provider(request: pytest.FixtureRequest) -> str:
    """Each provider in turn. Without a GPU, cuda is skipped."""
    name: str = request.param
    if name == "cuda" and (reason := gpu.missing()):
        pytest.skip(reason)
    return name


class _Kept(ToolLauncher):
    """A launcher of replays that keeps its processes for the next replay."""

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, *args: Any, **options: Any) -> Run:  # noqa: ANN401
        return super().start(*args, **{**options, "fresh": False})


@pytest.fixture(scope="module")
def kept_ranks() -> Iterator[None]:
    """Replays reuse their processes."""
    kept = _Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pynccl.tools.replay.run.Launcher", lambda: kept)
        yield
    kept.close()
