"""Proves that programs without pynccl run on CPUs with hostnccl in place of NCCL by LD_PRELOAD
alone: a plain ctypes client, CuPy's own bindings, and Python code that loads the library by its
name.

CuPy needs neither a GPU nor the CUDA toolkit for that: its module cupy.cuda.nccl links libnccl.so.2
and nothing of CUDA. `pip install cupy-cuda13x` (or -cuda12x) is enough for its test not to skip.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import shared_memory
from tests.support.preload import CLIENTS, environment, run_client


def test_a_ctypes_client(tmp_path: Path) -> None:
    first, second = run_client("by_ctypes.py", 2, tmp_path)
    version, rest = first.split(" ", 1)
    assert int(version) >= 23200
    assert rest == "{3.0} {3.0}"
    assert second == first


def test_cupy(tmp_path: Path) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    assert run_client("by_cupy.py", 2, tmp_path) == ["{3.0} {2.0} {2.0}", "{3.0} {2.0} {1.0}"]


def test_a_client_that_dies_is_no_hang(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1, which never starts; SIGTERM ends it immediately without remains."""
    before = shared_memory.entries()
    process = subprocess.Popen(
        [sys.executable, CLIENTS / "by_ctypes.py", "0", "2", tmp_path / "id"],
        env=environment(),
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "id").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    assert not shared_memory.left_behind(before)
