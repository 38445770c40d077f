"""Proves that importing pynccl takes less than 60 ms. test_package.py looks for torch and NumPy."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

_BOUND = 0.060  # seconds
_ATTEMPTS = 10  # the least of them counts: other load only makes one longer


def _seconds(module: str) -> float:
    """Python's own account of an import, the start of the interpreter left out."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    # Imported first, pynccl.nccl and pynccl.raw contain pynccl.
    times = re.findall(rf"\| +(\d+) \| {re.escape(module)}$", text, re.MULTILINE)
    return int(times[-1]) / 1e6


@pytest.mark.parametrize("module", ["pynccl", "pynccl.nccl", "pynccl.raw"])
def test_import_time(module: str) -> None:
    assert min(_seconds(module) for _ in range(_ATTEMPTS)) < _BOUND
