"""Proves that links and pipes that another user planted at the path of a flight dump, a trace or a
recording are neither followed nor written to, and that only the owner can change the new file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pynccl import nccl
from pynccl.tools.trace import chrome
from tests.support.commands import run_python

_WORLD = """
import numpy as np
from pynccl import nccl
with nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host") as comm:
    comm.all_reduce(np.ones(3))
"""


def _dump(path: Path) -> None:
    nccl.dump_flight_record(path)


def _trace(path: Path) -> None:
    with nccl.trace() as trace:
        pass
    assert trace.process is not None
    chrome.save(trace.process, path)


_WRITERS: list[Callable[[Path], None]] = [_dump, _trace]


@pytest.mark.parametrize("write", _WRITERS)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_planted_files_are_an_error(
    tmp_path: Path, write: Callable[[Path], None], kind: str
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "name_0"
    victim.write_text("precious")
    if kind == "pipe":
        os.mkfifo(path)  # opening it would block without a reader
    else:
        path.symlink_to(victim if kind == "link" else tmp_path / "nothing")
    with pytest.raises(OSError, match="name_0"):
        write(path)
    assert victim.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["name_0", "victim"]


@pytest.mark.parametrize("write", _WRITERS)
def test_only_the_owner_can_change_it(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """An existing file that others can write to is replaced."""
    path = tmp_path / "name_0"
    path.write_text("old")
    path.chmod(0o666)
    inode = path.stat().st_ino
    before = os.umask(0)
    try:
        write(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.stat().st_ino != inode
    assert os.listdir(tmp_path) == ["name_0"]


@pytest.mark.parametrize("variable", ["PYNCCL_TRACE", "PYNCCL_RECORD"])
def test_the_files_of_a_process(tmp_path: Path, variable: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "run.0.rec"
    victim.write_text("precious")
    path.symlink_to(victim)
    env = {variable: str(tmp_path / "run.rec"), "RANK": "0"}
    assert "run.0.rec" in run_python("-c", _WORLD, **env).stderr
    assert victim.read_text() == "precious"
    path.unlink()
    path.write_text("old")
    done = run_python("-c", _WORLD, **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["run.0.rec", "victim"]
    assert chrome.load(path)


def test_a_dump_by_a_signal(tmp_path: Path) -> None:
    """Even if the file of an earlier dump exists."""
    victim, path = tmp_path / "victim", tmp_path / "flight_0"
    victim.write_text("precious")
    path.symlink_to(victim)
    code = "import sys, time; from pynccl import nccl; print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "RANK": "0", "PYNCCL_FLIGHT_FILE": str(tmp_path / "flight_")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert process.stderr
            process.stdout.readline()
            process.send_signal(signal.SIGUSR2)
            assert "the flight record was not written" in process.stderr.readline()
            path.unlink()
            for _ in range(2):
                path.write_text("old")
                process.send_signal(signal.SIGUSR2)
                deadline = time.monotonic() + 30
                while path.read_text() == "old" and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert json.loads(path.read_text())["reason"] == "SIGUSR2"
        finally:
            process.kill()
    assert victim.read_text() == "precious"
