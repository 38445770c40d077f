"""The rules of NCCL, probed on the test double and on hostnccl: what differs is in the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles import build
from tests.rules.run import HOST
from tests.support.tier import FULL

_ROOT = Path(__file__).resolve().parents[2]
_TARGETS = ["2.30", HOST] if not FULL else ["2.18", "2.24", "2.28", "2.30", "2.32", HOST]


@pytest.fixture(scope="module")
def double() -> None:
    """The double is built, or the test is skipped."""
    try:
        build.build(_ROOT / "build" / "cuda-double")
    except build.BuildError as error:
        pytest.skip(f"the CUDA double cannot be built: {error}")


@pytest.mark.parametrize("target", _TARGETS)
def test_rules(double: None, target: str) -> None:
    """No outcome is new, whatever the environment says: NCCL's, or one whose difference the table
    lists.
    """
    # In a process without other libraries and threads, since it forks.
    command = [sys.executable, "-m", "tests.rules.run", "--only-new", target]
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_COMM_BLOCKING": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
