"""Proves that a process exits in time and without an error despite unfinished work: operations
without other ranks, connections in progress, a group that is not destroyed, running callbacks of
futures, daemon threads in a collective or in a wait.
"""

from __future__ import annotations

import pytest

from tests.support import warm
from tests.support.commands import run_python
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_SILENT = """
import threading, time, torch
from torch.distributed import Store
from pynccl.c10d.connector import Connector, leave_stores
import atexit

class Silent(Store):
    def wait_for_ever(self, *_):
        threading.Event().wait()
    add = set = get = check = wait_for_ever

connectors = []

def connect(rank):
    connector = Connector(Silent(), rank, 2, name="x", timeout=600.0, config=None)
    connectors.append(connector)
    try:
        connector.connect(torch.device("cpu"), -1, False)
    except RuntimeError as error:
        print(error, flush=True)

for rank in (0, 1):
    threading.Thread(target=connect, args=[rank], daemon=True).start()
while sum(connector.is_in_store for connector in connectors) < 2:
    time.sleep(0.01)
atexit.register(leave_stores)
"""


def test_exit_during_a_wait_for_a_silent_store() -> None:
    done = run_python("-c", _SILENT, popen=warm.WholePopen)
    assert done.returncode == 0, done
    assert done.stdout.count("the group was closed while it connected") == 2, done


def test_exits_are_counted() -> None:
    """Two ranks of each case."""
    arguments = ("-m", "tests.c10d.exits", "--runs", "40" if FULL else "1")
    done = run_python(*arguments, timeout=900 if FULL else 120, popen=warm.WholePopen)
    assert done.returncode == 0, (done.stdout, done.stderr)
