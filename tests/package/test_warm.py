"""Proves that the forks in which tests run programs, of a process with torch or with NumPy and
pytest, exit like an interpreter, and get their environment while it changes.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import warm
from tests.support.commands import run_python

pytest.importorskip("torch")

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
    done = run_python("-c", _END, popen=popen)
    assert (done.returncode, done.stdout) == (3, "thread\natexit\n")


def test_the_environment_is_copied_while_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the main thread, pytest changes it meanwhile."""
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
