"""Proves that a process ends in time and without an error whatever it leaves: operations that
no other rank joins, connections that are being made, a group that is not destroyed, callbacks of
futures that run, daemon threads in a collective or in a wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import run_command
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[2]

_SCRIPT = """
import sys, torch, torch.distributed as dist, pynccl.c10d
rank, url, body = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("pynccl", init_method=url, rank=rank, world_size=2)
tensor = torch.ones(4)
dist.all_reduce(tensor)
if rank == 0:
    exec(body)
print("end", flush=True)
"""

_LEFT = {
    "nothing": "",
    "operation": "work = dist.all_reduce(tensor, async_op=True)",
    "connecting": "work = dist.isend(tensor, 1)",
    "waiting": "work = dist.irecv(tensor, 1)",
    "destroyed": "work = dist.irecv(tensor, 1); dist.destroy_process_group()",
}


@pytest.mark.parametrize("left", _LEFT)
def test_process_ends(tmp_path: Path, left: str) -> None:
    command = [sys.executable, "-c", _SCRIPT]
    ranks = [
        warm.WholePopen(
            [*command, str(rank), f"file://{tmp_path}/store", _LEFT[left]],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            out, errors = rank.communicate(timeout=60)
            assert (rank.returncode, out) == (0, "end\n"), errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


_SILENT = """
import threading, time, torch
from torch.distributed import Store
from pynccl.c10d.connector import Connector, leave_stores
import atexit

class Silent(Store):
    def wait_for_ever(self, *_):
        threading.Event().wait()
    add = set = get = check = wait_for_ever

def connect(rank):
    connector = Connector(Silent(), rank, 2, name="x", timeout=600.0, config=None)
    try:
        connector.connect(torch.device("cpu"), -1, False)
    except RuntimeError as error:
        print(error, flush=True)

for rank in (0, 1):
    threading.Thread(target=connect, args=[rank], daemon=True).start()
time.sleep(0.3)
atexit.register(leave_stores)
"""


def test_process_ends_that_waits_for_a_silent_store() -> None:
    done = run_command([sys.executable, "-c", _SILENT], _ROOT, os.environ, timeout=60)
    assert done.returncode == 0, done
    assert done.stdout.count("the group was closed while it connected") == 2, done


def test_exits_are_counted() -> None:
    """Two ranks of each case; beside gloo in the long form: python -m tests.c10d.exits."""
    options = ["--runs", "40"] if FULL else ["--runs", "1", "--backend", "pynccl"]
    command = [sys.executable, "-m", "tests.c10d.exits", *options]
    done = run_command(command, _ROOT, os.environ, timeout=900 if FULL else 120)
    assert done.returncode == 0, (done.stdout, done.stderr)
