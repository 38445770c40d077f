"""Proves that programs without pynccl run on CPUs with hostnccl in place of NCCL by LD_PRELOAD
alone: a plain ctypes client, CuPy's own bindings, and Python code that loads the library by its
name.

CuPy needs neither a GPU nor the CUDA toolkit for that: its module cupy.cuda.nccl links libnccl.so.2
and nothing of CUDA. `pip install cupy-cuda13x` (or -cuda12x) is enough for its test not to skip.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pynccl import libraries
from tests.support import shared_memory

_CLIENTS = Path(__file__).parents[1] / "clients"


def _environment() -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": str(libraries.hostnccl_preload())}


def _run(client: str, nranks: int, tmp_path: Path) -> list[str]:
    """What each rank of a client prints."""
    processes = [
        subprocess.Popen(
            [sys.executable, _CLIENTS / client, str(rank), str(nranks), tmp_path / "id"],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(nranks)
    ]
    try:
        ends = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, stderr) in zip(processes, ends, strict=True):
        assert process.returncode == 0, stderr
    return [stdout.strip() for stdout, _ in ends]


def test_a_ctypes_client(tmp_path: Path) -> None:
    first, second = _run("by_ctypes.py", 2, tmp_path)
    version, rest = first.split(" ", 1)
    assert int(version) >= 23200
    assert rest == "{3.0} {3.0}"
    assert second == first


def test_cupy(tmp_path: Path) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    assert _run("by_cupy.py", 2, tmp_path) == ["{3.0} {2.0} {2.0}", "{3.0} {2.0} {1.0}"]


def test_a_client_that_dies_is_no_hang(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1, which never starts; SIGTERM ends it at once and leaves nothing."""
    before = shared_memory.entries()
    process = subprocess.Popen(
        [sys.executable, _CLIENTS / "by_ctypes.py", "0", "2", tmp_path / "id"],
        env=_environment(),
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "id").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.terminate()
    assert process.wait(5) == -signal.SIGTERM
    assert not shared_memory.left_behind(before)
