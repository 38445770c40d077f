"""Windows and one-sided operations follow the rules of the loaded NCCL, on the double.

Before 2.31 the first operation waits for all ranks, a rank whose memory cannot be shared fails
alone, and signal 0 is the only one. Drivers and machines that lack requirements are reported.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.doubles import library
from tests.support.blocking import wait_until_blocked
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_PAGE = 4096
_VERSIONS = ("2.30", "2.32")
_each_version = pytest.mark.parametrize(
    "env", [library.of_version(version) for version in _VERSIONS], ids=_VERSIONS
)


def _is_old() -> bool:
    return os.environ["PYNCCL_DOUBLE"] == "2.30"


def _window(rank: Rank) -> nccl.Window:
    return rank.comm.register_window(rank.comm.mem_alloc(2 * _PAGE))


@_each_version
@on_ranks(2, by="env", provider="cuda", fresh=True, timeout=30)
def test_the_first_operation_is_collective_before_2_31(rank: Rank) -> None:
    """Through nccl.h's functions, without earlier calls."""
    lib = raw.load("cuda")
    memory = rank.comm.mem_alloc(_PAGE)
    comm, stream = rank.comm.handle, rank.stream()
    lib.ncclCommWindowRegister(comm, memory.ptr, _PAGE, raw.NCCL_WIN_COLL_SYMMETRIC)
    done = threading.Event()

    def signal() -> None:
        lib.ncclSignal(1, 0, 0, 0, comm, stream.handle)
        done.set()

    if rank.rank == 0:
        thread = threading.Thread(target=signal)
        thread.start()
        if _is_old():
            wait_until_blocked(thread)
            assert not done.is_set()
        else:
            assert done.wait(20)
        rank.set_event("signals")
    if rank.rank == 1:
        rank.wait_event("signals", 0)
        lib.ncclWaitSignal(1, [raw.ncclWaitSignalDesc_t(opCnt=1, peer=0)], comm, stream.handle)
    else:
        thread.join(20)
        assert done.is_set()


@_each_version
@on_ranks(3, by="env", provider="cuda", fresh=True, timeout=30)
def test_all_ranks_learn_that_one_cannot_register(rank: Rank) -> None:
    comm = rank.comm
    ordinary = rank.memory.put(np.zeros(_PAGE, np.uint8))
    shared = comm.mem_alloc(_PAGE)
    calls: list[tuple[Callable[[], nccl.Window], str]] = [
        (lambda: comm.register_window(ordinary), "is not memory that NCCL can share"),
        (lambda: comm.register_window(comm.mem_alloc(0)), "has no elements"),
    ]
    for call, text in calls:
        wrong = call if rank.rank == 1 else lambda: comm.register_window(shared)
        with pytest.raises(ValueError, match=text) as caught:
            wrong()
        assert ("of rank 1" in str(caught.value)) == (rank.rank != 1)
    with pytest.raises(nccl.NcclInvalidArgumentError):  # no rank can, and NCCL reports it
        comm.register_window(ordinary)
    with comm.register_window(shared) as window:
        assert window.handle


@_each_version
@on_ranks(2, by="env", provider="cuda", fresh=True, timeout=30)
def test_signals_of_versions(rank: Rank) -> None:
    _window(rank)
    lib, stream = raw.load("cuda"), rank.stream()
    calls: list[Callable[[], object]] = [
        lambda: rank.comm.signal(rank.rank, signal=1, stream=stream),
        lambda: rank.comm.wait_signal(rank.rank, context=1, stream=stream),
    ]
    wrong = ValueError if _is_old() else nccl.NcclInvalidArgumentError
    text = "needs NCCL 2.31" if _is_old() else r"is not in \[0, 1\)"
    for call in calls:
        with pytest.raises(wrong, match=text):
            call()
    with pytest.raises(nccl.NcclInvalidArgumentError):
        lib.ncclSignal(rank.rank, 1, 0, 0, rank.comm.handle, stream.handle)


def _not_available(rank: Rank, error: type[Exception], text: str) -> None:
    """Registration and collectives work."""
    window = _window(rank)
    stream = rank.stream()
    calls: list[Callable[[], object]] = [
        lambda: rank.comm.signal(1 - rank.rank, stream=stream),
        lambda: rank.comm.wait_signal(1 - rank.rank, stream=stream),
        lambda: rank.comm.put_signal(
            window.address, 1 - rank.rank, window, stream=stream, count=8, dtype="uint8"
        ),
    ]
    for call in calls:
        with pytest.raises(error, match=text):
            call()
    x = rank.memory.put(np.ones(4, np.float32))
    rank.comm.all_reduce(x)
    assert (rank.memory.get(x) == 2).all()


_MISSING = {
    "CUDA_DOUBLE_DRIVER_VERSION=12040": (RuntimeError, r"of version 12\.5 or later; .*12\.4"),
    "NCCL_DOUBLE_ONE_SIDED=0": (nccl.NcclInvalidArgumentError, "one LSA team"),
}


@pytest.mark.parametrize(
    ("version", "missing"),
    list(itertools.product(_VERSIONS, _MISSING))
    if FULL
    else list(zip(_VERSIONS, _MISSING, strict=True)),
)
def test_requirements_of_one_sided_operations(launch: Launcher, version: str, missing: str) -> None:
    variable, value = missing.split("=")
    env = {**library.of_version(version), variable: value}
    launch(2, _not_available, *_MISSING[missing], provider="cuda", env=env, fresh=True, timeout=30)
