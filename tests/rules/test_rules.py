"""NCCL's rules, probed on the test double and on hostnccl. The table lists all differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles import build
from tests.rules.run import HOST
from tests.support.commands import run_python
from tests.support.tier import FULL

_ROOT = Path(__file__).resolve().parents[2]
_TARGETS = [*build.VERSIONS, HOST] if FULL else ["2.30", HOST]


@pytest.fixture(scope="module")
def double() -> None:
    """Build the double, or skip the test."""
    try:
        build.build(_ROOT / "build" / "cuda-double")
    except build.BuildError as error:
        pytest.skip(f"the CUDA double cannot be built: {error}")


@pytest.mark.parametrize("target", _TARGETS)
def test_rules(double: None, target: str) -> None:
    """Every outcome is NCCL's or a listed difference, regardless of the environment."""
    # In a process without other libraries and threads, because it forks.
    options = ("-m", "tests.rules.run", target)
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_COMM_BLOCKING": "0"}
    done = run_python(*options, timeout=300, **env)
    assert done.returncode == 0, done.stdout + done.stderr
