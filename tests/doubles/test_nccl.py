"""The double of libnccl.so.2 enforces NCCL's own rules.

Each version lacks the functions that NCCL's lacks. tests/rules compares the results of its calls.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pynccl import nccl
from tests.doubles import build, library
from tests.support import gpu
from tests.support.blocking import wait_until_blocked
from tests.support.commands import python_output
from tests.support.launcher import Launcher
from tests.support.rank import Rank, wait_for

pytestmark = pytest.mark.violations

SECONDS = 0.5
_LOOK = """
import ctypes, sys
library, number = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
assert library.ncclGetVersion(ctypes.byref(number)) == 0
print(number.value, *(hasattr(library, name) for name in sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("version", "code", "has", "lacks"),
    [
        ("2.18", 21805, "ncclCommSplit", "ncclMemAlloc"),
        ("2.24", 22403, "ncclResetDebugInit", "ncclCommShrink"),
        ("2.28", 22809, "ncclCommRevoke", "ncclPutSignal"),
        ("2.32", 23203, "ncclSetEncryption", ""),
    ],
)
def test_versions(version: str, code: int, has: str, lacks: str) -> None:
    path = str(build.nccl(library.folder(), version))
    seen = python_output(_LOOK, path, has, lacks or "ncclNothing")
    assert seen.split() == [str(code), "True", "False"]


@pytest.fixture
def comm() -> Iterator[nccl.Communicator]:
    made = nccl.Communicator(1, nccl.get_unique_id("cuda"), 0, provider="cuda", device=0)
    yield made
    made.abort()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("operates", [False, True])
def test_functions_need_a_join(comm: nccl.Communicator, mode: Any, operates: bool) -> None:  # noqa: ANN401
    """Unlike operations, on a captured stream."""
    import torch

    stream, event = nccl.Stream("cuda", device=0), nccl.Event("cuda", device=0)
    other, x = nccl.Stream("cuda", device=0), torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    unjoined = pytest.raises(nccl.DriverError, match="CUDA_ERROR_STREAM_CAPTURE_UNJOINED")
    with unjoined, nccl.capture(stream, mode=mode):
        event.record(stream)
        other.wait(event)
        if operates:
            comm.all_reduce(x, stream=other)
        other.launch(lambda: None)


def test_host_memory_is_reported(comm: nccl.Communicator, no_violations: None) -> None:
    memory = (ctypes.c_float * 4)()
    comm.all_reduce(ctypes.addressof(memory), count=4, dtype="float32", stream=0)
    (text,) = library.violations(clear=True)
    assert "ncclAllReduce takes 16 bytes" in text
    assert "not device memory" in text


def test_memory_of_another_device_is_reported(comm: nccl.Communicator, no_violations: None) -> None:
    import torch

    x = torch.ones(4, device="cuda:1")
    torch.cuda.synchronize(1)
    comm.all_reduce(x.data_ptr(), count=4, dtype="float32", stream=0)
    (text,) = library.violations(clear=True)
    assert "ncclAllReduce on device 0 takes 16 bytes" in text
    torch.cuda.synchronize(0)


def test_a_stream_of_another_device_is_refused(comm: nccl.Communicator) -> None:
    import torch

    stream = nccl.Stream("cuda", device=1)
    with pytest.raises(nccl.NcclError, match="ncclAllReduce failed"):
        comm.all_reduce(torch.ones(4, device="cuda:0"), stream=stream)


def test_freed_memory_in_flight_is_reported(comm: nccl.Communicator, no_violations: None) -> None:
    stream = nccl.Stream("cuda", device=0)
    functions = ctypes.CDLL(str(build.nccl(library.folder(), "2.32")))
    address = ctypes.c_void_p()
    assert functions.ncclMemAlloc(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    with library.held(stream.handle):
        comm.all_reduce(address.value, count=4, dtype="float32", stream=stream)
        assert functions.ncclMemFree(address) == 0
    stream.synchronize()
    first, second = library.violations(clear=True)
    assert "ncclMemFree of 4096 bytes" in first
    assert "ncclAllReduce used 4096 bytes" in second


def _peer_dies(rank: Rank, seen: str, captured: bool) -> tuple[bool, str]:
    import torch

    comm = rank.communicator()
    x = torch.ones(4, device=f"cuda:{rank.device}")
    comm.all_reduce(x)
    torch.cuda.synchronize(rank.device)
    if rank.rank == 1:
        wait_for(seen)
        os.kill(os.getpid(), signal.SIGKILL)
    stream = rank.stream()
    with nccl.capture(stream) as graph:
        comm.all_reduce(x, stream=stream)
    Path(seen).touch()
    if captured:
        graph.launch(stream)
    else:
        comm.all_reduce(x, stream=stream)
    time.sleep(3 * SECONDS)
    done, error = stream.query(), str(comm.async_error())
    comm.abort()
    return done, error


@pytest.mark.parametrize("captured", [False, True])
def test_a_kernel_whose_peer_has_died_spins(
    launch: Launcher, tmp_path: Path, captured: bool
) -> None:
    seen = str(tmp_path / "seen")
    first, second = launch.outcomes(2, _peer_dies, seen, captured, provider="cuda")
    assert first.ok, first.trace
    assert first.value == (False, "None")
    assert second.died == "killed by SIGKILL"


def test_abort_under_a_call_is_reported(no_violations: None) -> None:
    gpu.require("cuda", "ncclCommRevoke")  # without it, only an abort ends a call
    pair = nccl.Communicator.init_all([0, 1], provider="cuda")
    functions = ctypes.CDLL(str(build.nccl(library.folder(), os.environ["PYNCCL_DOUBLE"])))
    # Destroying waits for graphs with the communicator's operations, so the call blocks.
    import torch

    tensors = [torch.ones(4, device=f"cuda:{device}") for device in range(2)]
    with nccl.group():  # the first call waits for the other rank's
        for comm, x in zip(pair, tensors, strict=True):
            comm.all_reduce(x)
    for device in range(2):
        torch.cuda.synchronize(device)
    stream = nccl.Stream("cuda", device=0)
    with nccl.capture(stream) as graph, nccl.group():
        pair[0].all_reduce(tensors[0])
    finalizing = threading.Thread(
        target=lambda: functions.ncclCommFinalize(ctypes.c_void_p(pair[0].handle))
    )
    finalizing.start()
    wait_until_blocked(finalizing)
    aborting = threading.Thread(
        target=lambda: functions.ncclCommAbort(ctypes.c_void_p(pair[0].handle))
    )
    aborting.start()
    wait_until_blocked(aborting)
    graph.close()
    aborting.join(10)
    finalizing.join(10)
    assert not aborting.is_alive()
    assert "ncclCommAbort frees a communicator" in library.violations(clear=True)[0]
    pair[1].abort()
