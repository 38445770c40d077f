"""Proves that a step of the Makefile is one line with its time, that what it printed is shown where
it fails, with its exit status, and that tests and benchmarks print as they run.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

_STEP = Path(__file__).parents[2] / "tools" / "step"


def _step(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    for name in ("pip", "cmake", "pytest"):
        (bin_ / name).write_text('#!/bin/sh\necho "warning of $0"; exit "${STATUS:-0}"\n')
        (bin_ / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}
    return subprocess.run(
        [_STEP, "-c", command],
        cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("pip --quiet install -c constraints.txt --group bench", "packages of the group bench"),
        ("pip install -c constraints.txt --upgrade pip", "update pip"),
        ("pip install --no-build-isolation -e .", "install pynccl"),
        ("cmake --build build/cmake", "compile pynccl"),
        ("cmake -S . -B build \\\n  -G Ninja", "configure the build"),
    ],
)
def test_one_line(tmp_path: Path, command: str, name: str) -> None:
    done = _step(command, tmp_path)
    assert done.returncode == 0
    assert re.fullmatch(rf"(install the )?{name} \.\.\. +\d+\.\d s\n", done.stdout)
    assert done.stderr == ""
    assert "warning of" in (tmp_path / "build" / "steps.log").read_text()


def test_a_failure(tmp_path: Path) -> None:
    done = _step("STATUS=3 cmake --build x", tmp_path)
    assert done.returncode == 3
    first, command, *rest = done.stdout.splitlines()
    assert re.fullmatch(r"compile pynccl \.\.\. +failed after \d+\.\d s", first)
    assert command == "$ STATUS=3 cmake --build x"
    assert len(rest) == 1
    assert rest[0].startswith("warning of")


def test_what_prints_itself(tmp_path: Path) -> None:
    done = _step("pytest tests", tmp_path)
    assert re.fullmatch(r"warning of .*pytest\n", done.stdout)
    assert _step("touch done", tmp_path).stdout == ""
    assert (tmp_path / "done").exists()
