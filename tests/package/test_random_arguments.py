"""Proves that random arguments, well made and malformed, neither crash the process nor raise an
error that says nothing of the argument. `make sanitize-module` runs more, under AddressSanitizer.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_CALLS = 20_000


@pytest.mark.parametrize("seed", [0])
def test_random_arguments(seed: int) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tests.stress.arguments", str(_CALLS), "--seed", str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"[-4000:]
    assert f"{_CALLS} calls" in done.stdout
