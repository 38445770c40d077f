"""Proves the actions of a time limit besides the error: none, the end of the process, or a call of
the program's function, even while the main thread blocks.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import errors, nccl
from tests.support.blocking import wait_until
from tests.support.commands import run_python
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def _comms(nranks: int = 2) -> list[nccl.Communicator]:
    return nccl.Communicator.init_all(nranks, provider="host")


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_a_function_is_called_once(rank: Rank) -> None:
    called: list[tuple[nccl.Communicator, nccl.NcclError]] = []
    done = threading.Event()

    def note(comm: nccl.Communicator, error: nccl.NcclError) -> None:
        called.append((comm, error))
        done.set()

    config = nccl.Config(on_timeout=note)
    assert config.on_timeout is note
    comm = rank.communicator(1, config=config)
    assert comm.on_timeout is note
    stream, buffer = rank.stream(), rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(buffer, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        rank.wait_event("done", 0)
        comm.abort()
        return
    comm.timeout = 0.5
    with pytest.raises(nccl.NcclTimeoutError):  # noqa: PT012
        comm.all_reduce(buffer, stream=stream)
        stream.synchronize()
    assert done.wait(20)
    ((told, error),) = called
    assert told is comm
    assert isinstance(error, nccl.NcclTimeoutError)
    assert "all_reduce #2" in str(error)
    assert comm.expired
    comm.timeout = 30
    with comm.shrink([1], abort=True) as alone:
        assert alone.on_timeout is note  # inherited like the other settings
    rank.set_event("done")
    comm.close()
    assert len(called) == 1


def test_the_function_may_wait_for_the_error_and_use_the_communicator(
    pair: list[nccl.Communicator],
) -> None:
    pair[0].timeout = 0.3
    raised, shrunk = threading.Event(), []

    def recover(comm: nccl.Communicator, _error: nccl.NcclError) -> None:
        if raised.wait(20):
            comm.timeout = 30
            shrunk.append(comm.shrink([1], abort=True))

    pair[0].on_timeout = recover
    with pytest.raises(nccl.NcclTimeoutError):
        pair[0].all_reduce(np.ones(4))
    raised.set()
    wait_until(lambda: shrunk)
    assert shrunk[0].nranks == 1
    shrunk[0].abort()


def test_others_expire_while_a_function_runs() -> None:
    """A function that does not return delays no other communicator."""
    comms, stop = [_comms(), _comms()], threading.Event()
    ended: list[bool] = []
    for pair in comms:
        pair[0].timeout = 0.3
        pair[0].on_timeout = lambda *_: ended.append(stop.wait(40))
    for pair in comms:
        with pytest.raises(nccl.NcclTimeoutError):
            pair[0].all_reduce(np.ones(4))
    assert not ended
    stop.set()
    for pair in comms:
        for comm in pair:
            comm.abort()


@pytest.mark.parametrize("raises", ["function", "arguments"])
def test_a_function_that_raises(monkeypatch: pytest.MonkeyPatch, raises: str) -> None:
    seen: list[BaseException | None] = []
    hooked = threading.Event()

    def hook(unraisable: object) -> None:
        seen.append(unraisable.exc_value)  # type: ignore[attr-defined]
        hooked.set()

    def fail(*_: object) -> None:
        raise RuntimeError("mine")

    def create(*arguments: Any) -> nccl.NcclError:  # noqa: ANN401
        if threading.get_ident() != caller:
            fail()
        return from_result(*arguments)

    caller, from_result = threading.get_ident(), errors.from_result
    monkeypatch.setattr(sys, "unraisablehook", hook)
    if raises == "arguments":
        monkeypatch.setattr(errors, "from_result", create)
    comms = _comms()
    comms[0].timeout = 0.3
    comms[0].on_timeout = fail
    with pytest.raises(nccl.NcclTimeoutError):
        comms[0].all_reduce(np.ones(4))
    assert hooked.wait(20)
    assert str(seen[0]) == "mine"
    for comm in comms:
        comm.abort()


@pytest.mark.parametrize(
    ("value", "error"), [("ignore", ValueError), (3, TypeError), (b"raise", TypeError)]
)
def test_the_policy_is_checked(
    comm: nccl.Communicator, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"on_timeout: .*(ignore|3|raise)"):
        nccl.Config(on_timeout=value)
    with pytest.raises(error, match="on_timeout: "):
        comm.on_timeout = value  # type: ignore[assignment]


def test_children_inherit_the_attribute(comm: nccl.Communicator) -> None:
    def note(*_: object) -> None:
        pass

    comm.on_timeout = note
    with comm.split(0) as child:
        assert child.on_timeout is note
        child.on_timeout = "abort"
        assert comm.on_timeout is note
        with child.split(0) as grandchild:
            assert grandchild.on_timeout == "abort"


_ABORT = """
import ctypes, os, threading
import numpy as np
from pynccl import nccl
comms = nccl.Communicator.init_all(2, provider="host")
comms[0].timeout = 0.3
{before}
print(comms[0].on_timeout, flush=True)
{wait}
print("survived", flush=True)
"""
_WAITS = {
    "a call": "comms[0].all_reduce(np.ones(4))",
    # The main thread holds the GIL and never returns to Python.
    "the GIL": """
threading.Thread(target=comms[0].all_reduce, args=[np.ones(4)], daemon=True).start()
ctypes.PyDLL(None).sleep(600)
""",
}


@pytest.mark.parametrize(("wait", "how"), [("a call", "environment"), ("the GIL", "attribute")])
def test_the_process_is_aborted(tmp_path: Path, wait: str, how: str) -> None:
    before = "comms[0].on_timeout = 'abort'" if how == "attribute" else ""
    env = {"PYNCCL_ON_TIMEOUT": "abort"} if how == "environment" else {}
    env |= {"PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_", "RANK": "0"}
    done = run_python("-c", _ABORT.format(before=before, wait=_WAITS[wait]), **env)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "abort\n"), done
    text = "pynccl: all_reduce #1 (float64, count=4, sum) on rank 0 did not complete"
    assert text in done.stderr
    assert (tmp_path / "flight_0").exists()


def test_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("raise", ""):
        monkeypatch.setenv("PYNCCL_ON_TIMEOUT", value)
        with nccl.Communicator.init_all(1, provider="host")[0] as comm:
            assert comm.on_timeout == "raise"
    monkeypatch.setenv("PYNCCL_ON_TIMEOUT", "exit")
    with pytest.raises(ValueError, match="PYNCCL_ON_TIMEOUT: 'exit' is neither"):
        nccl.Communicator.init_all(1, provider="host")


def test_the_destructor_of_a_replaced_function_may_use_the_attribute() -> None:
    script = """
from pynccl import nccl
comm = nccl.Communicator.init_all(1, provider="host")[0]
class Function:
    def __call__(self, *_): pass
    def __del__(self): print(comm.on_timeout, flush=True)
comm.on_timeout = Function()
comm.on_timeout = "abort"
comm.close()
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stdout) == (0, "abort\n"), done
