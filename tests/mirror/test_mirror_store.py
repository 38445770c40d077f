"""Proves that a store which answers during interpreter shutdown neither blocks an exchange beyond
its time limit nor breaks the exit of the process. tests/c10d/test_exit.py has one that never
answers.
"""

from __future__ import annotations

import pytest

from tests.support import warm
from tests.support.commands import run_python

pytest.importorskip("torch")

# The store's process is stopped; it ends, and thereby the call of the store returns, when the
# interpreter has begun to end.
_LATE = """
import os, signal, subprocess, sys, time
from torch.distributed import DistStoreError, TCPStore
from pynccl._internal.rendezvous import Rendezvous

server = subprocess.Popen([sys.executable, "-c", '''
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline())
store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
server.send_signal(signal.SIGSTOP)

class AtTheEnd:
    kill, sleep, pid = staticmethod(os.kill), staticmethod(time.sleep), server.pid
    def __del__(self, signal=signal.SIGKILL):
        self.kill(self.pid, signal)
        self.sleep(0.5)

sys.at_the_end = AtTheEnd()
try:
    Rendezvous(store, 0).gather("x", range(2), b"", 0.5)
except DistStoreError as error:
    print(error)
"""


def test_exit_after_a_store_did_not_answer() -> None:
    ran = run_python("-W", "ignore", "-c", _LATE, popen=warm.WholePopen)
    assert ran.returncode == 0, ran
    assert "127.0.0.1" in ran.stdout
    assert "has not answered" in ran.stdout
