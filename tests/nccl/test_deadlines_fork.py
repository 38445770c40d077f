"""Proves that a process can fork at any time while its deadlines are checked: no mutex is locked in
the child.
"""

from __future__ import annotations

from tests.support.commands import run_python
from tests.support.tier import FULL

_FORKS = """
import os, signal, threading
import numpy as np
from pynccl import nccl

FORKS = int(os.environ["FORKS"])
array = np.ones(4)
stream, blocked = nccl.Stream("host"), threading.Event()
stream.launch(blocked.wait)
comms = [nccl.Communicator.init_all(1, provider="host")[0] for _ in range(40)]
with nccl.capture(stream2 := nccl.Stream("host")) as graph:
    comms[0].all_reduce(array, stream=stream2)
for comm in comms:
    comm.all_reduce(array, stream=stream)  # the monitor polls whether they are done
graph.launch(stream)

def have_deadlines_checked():
    while not blocked.is_set():
        with nccl.deadline(50):  # wakes the monitor
            pass

def refused(call):
    try:
        call()
    except (nccl.NcclError, nccl.DriverError):
        return
    raise AssertionError("not refused")

def live():
    for comm in comms:
        comm.flight_record()
        refused(lambda: comm.all_reduce(array))
    refused(lambda: graph.launch(stream))
    refused(stream.query)
    expire()

def expire():
    own, queue = nccl.Communicator.init_all(2, provider="host"), nccl.Stream("host")
    own[0].timeout = 0.1
    own[0].all_reduce(array, stream=queue)
    try:
        queue.synchronize()
    except nccl.NcclTimeoutError:
        for comm in own:
            comm.abort()
        return
    raise AssertionError("not expired")

thread = threading.Thread(target=have_deadlines_checked)
thread.start()
ends = []
for _ in range(FORKS):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that hangs
        try:
            live()
            os._exit(0)
        finally:
            os._exit(1)
    ends.append(os.waitpid(child, 0)[1])
blocked.set()
thread.join()
stream.synchronize()
expire()  # no mutex is locked in the parent either
print(ends)
"""


def test_a_fork_while_deadlines_are_checked() -> None:
    forks = 60 if FULL else 15
    done = run_python("-c", _FORKS, FORKS=str(forks), timeout=240)
    assert done.stdout == f"{[0] * forks}\n", done
