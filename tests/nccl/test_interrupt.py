"""Proves that Ctrl-C ends every wait of the main thread on CPUs, and on GPUs those for streams and
events, within 0.2 seconds with a KeyboardInterrupt, that the other ranks hear of it, and that
handlers that do not raise only run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support.commands import run_command
from tests.support.in_world import run_in_world
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank

_ROOT = Path(__file__).parents[2]
_SOON = 0.2  # seconds

_WAIT = """
import os, signal, sys, threading, time
import numpy as np
from pynccl import nccl
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
comms = nccl.Communicator.init_all(2, provider="host")
comm, array, stream = comms[0], np.ones(4), nccl.Stream("host")

def interrupt():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

def wait(what):
    if what == "all_reduce": comm.all_reduce(array)
    elif what == "recv": comm.recv(array, 1)
    elif what == "send": comm.send(np.ones(1 << 20), 1)
    elif what == "group":
        with nccl.group():
            comm.send(array, 1)
            comm.recv(np.ones_like(array), 1)
    elif what == "split": comm.split(0)
    elif what == "init": nccl.Communicator(2, nccl.get_unique_id("host"), 0, provider="host")
    elif what == "init of the second":
        uid = nccl.get_unique_id("host")
        nccl.Communicator(3, uid, 1, provider="host")
    elif what == "synchronize":
        comm.all_reduce(array, stream=stream)
        stream.synchronize()
    elif what == "event":
        comm.all_reduce(array, stream=stream)
        event = nccl.Event("host")
        event.record(stream)
        event.synchronize()
    elif what == "finalize":
        comm.all_reduce(array, stream=stream)
        comm.finalize()
    elif what == "close":
        comm.all_reduce(array, stream=stream)
        comm.close()
        time.sleep(0.01)  # the exception comes between two instructions
    elif what == "suspend": comm.suspend()

threading.Timer(0.3, interrupt).start()
try:
    wait(sys.argv[1])
    print("no exception")
except KeyboardInterrupt as error:
    late = time.monotonic() - sent
    print("interrupted" if late < float(sys.argv[2]) else f"after {late} s", comm.revoked)
for one in comms:
    one.abort()
"""
# Where the communicator is not part of the wait, it stays usable.
_WAITS = {
    "all_reduce": True,
    "recv": True,
    "send": True,
    "group": True,
    "split": True,
    "init": False,
    "init of the second": False,
    "synchronize": False,
    "event": False,
    "finalize": True,
    "close": True,
    "suspend": True,
}


@pytest.mark.parametrize("what", _WAITS)
def test_a_wait_is_interrupted(what: str) -> None:
    command = [sys.executable, "-c", _WAIT, what, str(_SOON)]
    done = run_command(command, _ROOT, os.environ, timeout=60)
    assert done.stdout == f"interrupted {_WAITS[what]}\n", done


_HANDLER = """
import os, signal, threading
import numpy as np
from pynccl import nccl
comms = nccl.Communicator.init_all(2, provider="host")
calls = []
signal.signal(signal.SIGUSR1, lambda *_: calls.append(threading.current_thread().name))
arrays = [np.ones(4), np.ones(4)]
for delay in (0.2, 0.4):
    threading.Timer(delay, os.kill, [os.getpid(), signal.SIGUSR1]).start()
seen = []
threading.Timer(0.7, lambda: (seen.append(len(calls)), comms[1].all_reduce(arrays[1]))).start()
comms[0].all_reduce(arrays[0])
print(seen, calls, arrays[0])
for comm in comms:
    comm.close()
"""


def test_a_handler_runs_while_the_call_waits() -> None:
    done = run_command([sys.executable, "-c", _HANDLER], _ROOT, os.environ, timeout=60)
    assert done.stdout == "[2] ['MainThread', 'MainThread'] [2. 2. 2. 2.]\n", done


def _wait_for_the_interrupted(rank: Rank) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm, array = rank.comm, np.ones(4)
    comm.all_reduce(array)
    rank.report("ready")
    if rank.rank == 1:
        time.sleep(1)  # the others wait for it
    try:
        comm.all_reduce(array)
    except KeyboardInterrupt:
        text = "interrupted"
    except nccl.NcclRemoteError as error:
        text = str(error)
    if rank.rank != 1:
        with comm.shrink([1], abort=True) as smaller:
            check_works(rank, smaller, [0, 2])
    return text


def test_the_others_hear_of_it(launch: Launcher) -> None:
    def interrupt(run: Run) -> None:
        run.gather_reports()
        time.sleep(0.3)
        run.kill(0, signal.SIGINT)

    outcomes = launch.outcomes(3, _wait_for_the_interrupted, while_running=interrupt, timeout=30)
    assert all(outcome.ok for outcome in outcomes), [outcome.trace for outcome in outcomes]
    first, *others = (outcome.value for outcome in outcomes)
    assert first == "interrupted"
    for text in others:
        assert "rank 0 (pid" in text
        assert "was interrupted by a signal" in text


def _mirror(dist: ModuleType, rank: int, _nranks: int, what: str) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.barrier()
    if rank == 1:
        time.sleep(1.5)
        return
    waits = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "recv": lambda: dist.recv(tensor, 1),
        "wait": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "barrier": dist.barrier,
    }
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        waits[what]()
    assert time.monotonic() - began < 0.3 + _SOON


@pytest.mark.parametrize("what", ["all_reduce", "recv", "wait", "barrier"])
def test_the_mirror_is_interrupted(launch: Launcher, tmp_path: Path, what: str) -> None:
    url = f"file://{tmp_path}/store"
    launch(2, run_in_world, _mirror, url, {}, (what,), timeout=40)


def _interrupted_on_a_stream(rank: Rank, on_event: bool) -> None:
    """Rank 1 comes late; what rank 0 has enqueued stays, and is complete then."""
    comm, stream = rank.comm, rank.stream()
    x = rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        time.sleep(1.5)
    comm.all_reduce(x, stream=stream)
    if rank.rank == 0:
        event = rank.event()
        event.record(stream)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            event.synchronize() if on_event else stream.synchronize()
        assert time.monotonic() - began < 0.3 + _SOON
    stream.synchronize()
    assert (rank.memory.get(x) == 4).all()
    comm.close()


@pytest.mark.parametrize("on_event", [False, True])
def test_a_wait_for_a_stream_is_interrupted(
    launch: Launcher, provider: str, on_event: bool
) -> None:
    launch(2, _interrupted_on_a_stream, on_event, provider=provider, timeout=30)
