"""Proves that the forks of a process with torch, or with NumPy and pytest, in which tests run
programs, are like new ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import run_command

pytest.importorskip("torch")

_TELL = """
import os, sys, threading
print(sys.argv[1:], os.getcwd(), os.environ.get("PYTEST_A"), "B" in os.environ, end=" ")
print(threading.active_count())
print(__name__, sys.stdin.read(), file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize("form", ["-c", "file", "-m"])
def test_a_program_has_its_arguments_and_its_status(tmp_path: Path, form: str) -> None:
    (tmp_path / "program.py").write_text(_TELL)
    program = {"-c": ["-c", _TELL], "file": ["program.py"], "-m": ["-m", "program"]}[form]
    process = warm.Popen(
        [sys.executable, *program, "x", "-y"],
        cwd=tmp_path,
        env={**{name: text for name, text in os.environ.items() if name != "B"}, "PYTEST_A": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, errors = process.communicate("typed", timeout=60)
    assert (out, errors) == (f"['x', '-y'] {tmp_path} 1 False 1\n", "__main__ typed\n")
    assert process.returncode == process.poll() == 7


_END = """
import atexit, sys, threading, time
def work():
    time.sleep(0.1)
    print("thread")
threading.Thread(target=work).start()
atexit.register(print, "atexit")
sys.exit(3)
"""


@pytest.mark.parametrize("popen", [warm.Popen, warm.LightPopen, warm.WholePopen])
def test_what_is_left_at_the_end_is_done(popen: type[warm.Popen]) -> None:
    done = run_command([sys.executable, "-c", _END], Path.cwd(), os.environ, 60, popen=popen)
    assert (done.returncode, done.stdout) == (3, "thread\natexit\n")


def test_the_environment_is_copied_while_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pytest changes it, on the main thread."""
    monkeypatch.setenv("CHANGES", "")
    stop = threading.Event()

    def copy() -> None:
        while not stop.is_set():
            assert warm.own_environment().get("CHANGES") in {"1", None, ""}

    with ThreadPoolExecutor() as pool:
        copies = pool.submit(copy)
        for _ in range(20_000):
            os.environ["CHANGES"] = "1"
            del os.environ["CHANGES"]
        stop.set()
        copies.result()
