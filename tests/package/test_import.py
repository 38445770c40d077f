"""Proves that importing pynccl takes less than 60 ms and prepares the barrier of aborts, and that
the error of an uncompiled source tree gives advice. test_package.py checks for torch and NumPy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pynccl
from tests.support.commands import run_command, run_python

_BOUND = 0.060  # seconds
_ATTEMPTS = 60  # attempts until one is below the limit; load only makes imports slower


def _seconds(module: str) -> float:
    """The duration of an import measured by Python, without the interpreter's start."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    # Imported first, pynccl.nccl and pynccl.raw contain pynccl.
    times = re.findall(rf"\| +(\d+) \| {re.escape(module)}$", text, re.MULTILINE)
    return int(times[-1]) / 1e6


@pytest.mark.parametrize("module", ["pynccl", "pynccl.nccl", "pynccl.raw"])
def test_import_time(module: str) -> None:
    assert any(_seconds(module) < _BOUND for _ in range(_ATTEMPTS))


# Prints whether the process is registered for membarrier(PRIVATE_EXPEDITED), which the kernel
# refuses else, and whether a child of a fork is.
_REGISTERED = """
import ctypes, os, platform, sys, threading, time
membarrier = {"x86_64": 324, "aarch64": 283}[platform.machine()]
private_expedited, gate = 8, threading.Event()

def registered():
    return ctypes.CDLL(None).syscall(membarrier, private_expedited, 0, 0) == 0

if sys.argv[1] == "threads":
    threading.Thread(target=gate.wait, daemon=True).start()
assert not registered()
from pynccl import nccl
deadline = time.monotonic() + 60
while not registered() and sys.argv[1] == "threads" and time.monotonic() < deadline:
    time.sleep(0.01)
print(registered(), flush=True)
if (child := os.fork()) == 0:
    print(registered(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("threads", ["alone", "threads"])
def test_the_barrier_of_an_abort_is_prepared(threads: str) -> None:
    """With several threads, the kernel may take seconds for that."""
    done = run_python("-c", _REGISTERED, threads, timeout=120)
    assert (done.stdout, done.returncode) == ("True\nTrue\n", 0), done.stderr


def test_a_source_tree_that_is_not_compiled(tmp_path: Path) -> None:
    """Python started in it finds it before the installed package, whose modules an editable
    installation would add: -S leaves that out.
    """
    (tmp_path / "pynccl").mkdir()
    shutil.copy(Path(pynccl.__file__), tmp_path / "pynccl")
    command = [sys.executable, "-S", "-c", "from pynccl import nccl"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_command(command, tmp_path, env, timeout=60)
    assert done.returncode == 1
    assert f"{tmp_path}/pynccl has no pynccl._C compiled for Python 3." in done.stderr
    assert "compile in place: pip install -e ." in done.stderr
