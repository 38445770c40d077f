"""Proves that hostnccl provides the host functions of NCCL's device API: the memory of peers in
windows, and device communicators with memory that all ranks can address; and that a thread waiting
in a kernel wakes when a peer signals, or can no longer signal. tests/nccl/test_device_comm.py tests
properties and teams.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pynccl import nccl, raw
from pynccl.errors import NcclError, NcclInvalidArgumentError, NcclInvalidUsageError
from tests.support.blocking import (
    DEADLINE,
    PAGE,
    Area,
    interrupt_when_blocked,
    synchronize,
    wait_until,
)
from tests.support.launcher import Launcher
from tests.support.preload import run_client
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

GIN_HANDLES = 104  # offset in ncclDevComm, in bytes
GIB = 1 << 30


class Kernel:
    """A kernel's view of a device communicator on CPUs: its memory, and how to wait in it."""

    def __init__(self, comm: nccl.Communicator, *, buffer: int = PAGE, **required: int) -> None:
        self._library, self._comm = comm.library, comm.handle
        requirements = raw.ncclDevCommRequirements_t()
        for name, value in required.items():
            setattr(requirements, name, value)
        self._resource = raw.ncclDevResourceRequirements_t()
        self._resource.bufferSize, self._resource.bufferAlign = buffer, 8
        self._handle = ctypes.c_uint32(0)
        self._resource.outBufferHandle = ctypes.addressof(self._handle)
        requirements.resourceRequirementsList = self._resource.address()
        self.struct = self._library.ncclDevCommCreate(self._comm, requirements)
        services = int.from_bytes(bytes(self.struct)[GIN_HANDLES : GIN_HANDLES + 8], "little")
        wait = ctypes.CFUNCTYPE(
            ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
        )
        _, self._context, address, waking = (ctypes.c_uint64 * 4).from_address(services)
        self._wait, self._wake = wait(address), ctypes.CFUNCTYPE(None, ctypes.c_void_p)(waking)

    def word(self, rank: int, index: int = 0) -> ctypes.c_uint64:
        """A word of a rank's memory."""
        return ctypes.c_uint64.from_address(
            self._memory(rank) + 128 * self._handle.value + 8 * index
        )

    def sleepers(self, rank: int) -> int:
        return ctypes.c_uint32.from_address(self._memory(rank)).value

    def wait(self, rank: int, least: int, bits: int = 64, index: int = 0) -> bool:
        return bool(
            self._wait(self._context, ctypes.addressof(self.word(rank, index)), bits, least)
        )

    def signal(self, rank: int, value: int, index: int = 0) -> None:
        self.word(rank, index).value = value
        if self.sleepers(rank):
            self._wake(ctypes.addressof(self.word(rank, index)))

    def close(self) -> None:
        self._library.ncclDevCommDestroy(self._comm, self.struct)

    def _memory(self, rank: int) -> int:
        return self._library.ncclGetPeerDevicePointer(self.struct.resourceWindow, 0, rank)


def _properties(rank: Rank) -> None:
    """The shorter struct of an older program is filled up to its size."""
    older = raw.ncclCommProperties_t()
    older.size, older.version, older.commHash = 40, 22902, 7
    older = rank.comm.library.ncclCommQueryProperties(rank.comm.handle, older)
    assert (older.nRanks, older.nLsaTeams, older.commHash) == (rank.nranks, 0, 7)


def _requirements(rank: Rank) -> None:
    library, comm = rank.comm.library, rank.comm.handle
    resource, barrier = raw.ncclDevResourceRequirements_t(), raw.ncclLsaBarrierHandle_t()
    world = library.ncclTeamWorld(comm)
    library.ncclLsaBarrierCreateRequirement(world, 3, barrier, resource)
    assert barrier.nBarriers == 3
    assert resource.bufferSize == 3 * (rank.nranks + 1) * 64
    requirements = raw.ncclDevCommRequirements_t()
    requirements.lsaBarrierCount = 1
    requirements.resourceRequirementsList = resource.address()
    struct = library.ncclDevCommCreate(comm, requirements)
    assert barrier.bufHandle > struct.lsaBarrier.bufHandle
    library.ncclDevCommDestroy(comm, struct)

    signals = raw.ncclGinBarrierHandle_t()
    library.ncclGinBarrierCreateRequirement(comm, world, 2, signals, resource)
    assert resource.ginSignalCount == 2 * rank.nranks
    requirements.resourceRequirementsList = resource.address()
    with pytest.raises(NcclInvalidArgumentError, match="GIN"):
        library.ncclDevCommCreate(comm, requirements)

    assert library.ncclLLA2ACalcSlots(5, 12) == 10
    exchange = raw.ncclLLA2AHandle_t()
    library.ncclLLA2ACreateRequirement(2, 10, exchange, resource)
    assert (exchange.nSlots, resource.bufferSize, resource.bufferAlign) == (10, 2 * 21 * 16, 16)
    with pytest.raises(NcclInvalidArgumentError, match="exceed the address space"):
        library.ncclLLA2ACreateRequirement(2**31 - 1, 2**31 - 1, exchange, resource)
    most = 2**39 - 2**27 - 128  # without space to align it
    for buffers in ((2**64 - 64,), (2**63, 2**63), (2**39 - 4096,), (most,)):
        with pytest.raises(NcclInvalidArgumentError, match="bytes of resource memory"):
            rank.comm.device_comm(buffers=buffers)
    with pytest.raises(NcclInvalidArgumentError, match="nBarriers=-1 is negative"):
        library.ncclLsaBarrierCreateRequirement(world, -1, barrier, resource)
    with pytest.raises(NcclInvalidArgumentError, match="nSlots=-1 is negative"):
        library.ncclLLA2ACreateRequirement(1, -1, exchange, resource)
    for team in (library.ncclTeamCft(comm, 0), library.ncclTeamCftMultimem(comm)):
        assert team.nRanks == 0


def _peers_in_a_window(rank: Rank) -> None:
    area = Area(rank.comm)
    library, window = rank.comm.library, area.window.handle
    area.incoming[:] = 100 + rank.rank
    synchronize(rank)
    addresses = [library.ncclGetLsaDevicePointer(window, area.half, r) for r in range(rank.nranks)]
    for peer, address in enumerate(addresses):
        assert address == library.ncclGetPeerDevicePointer(window, area.half, peer)
        assert ctypes.c_int32.from_address(address).value == 100 + peer
        assert (address - addresses[0]) % (4 * GIB) == 0  # as in NCCL
        assert address - addresses[0] == peer * (addresses[-1] - addresses[0]) // (rank.nranks - 1)
    synchronize(rank)
    ctypes.c_int32.from_address(addresses[(rank.rank + 1) % rank.nranks]).value = rank.rank
    synchronize(rank)
    assert area.incoming[0] == (rank.rank - 1) % rank.nranks
    assert library.ncclGetLsaMultimemDevicePointer(window, 0) == 0
    with pytest.raises(NcclInvalidArgumentError, match=r"peer=\d is not in"):
        library.ncclGetPeerDevicePointer(window, 0, rank.nranks)
    with pytest.raises(NcclInvalidArgumentError, match="offset=8192 is beyond"):
        library.ncclGetPeerDevicePointer(window, 2 * PAGE, 0)
    for call in (
        lambda: library.ncclGetPeerDeviceLeInfo(window, 0, 0),
        lambda: library.ncclGetCftDeviceLeInfo(window, 0, 0, raw.ncclTeam_t(1, 0, 1)),
        lambda: library.ncclGetMultimemDeviceLeInfo(window, 0),
    ):
        with pytest.raises(NcclInvalidUsageError, match="no logical endpoints"):
            call()
    synchronize(rank)
    area.window.close()
    with pytest.raises(NcclInvalidArgumentError, match="was deregistered"):
        library.ncclGetPeerDevicePointer(window, 0, 0)


def _signals(rank: Rank) -> None:
    """Each rank sleeps until the next one signals; short waits find the word already changed."""
    kernel = Kernel(rank.comm, lsaBarrierCount=2)
    assert kernel.struct.lsaBarrier.nBarriers == 2
    assert kernel.word(rank.rank).value == 0
    next_rank, one = (rank.rank + 1) % rank.nranks, np.ones(1, np.uint8)
    for turn in range(1, 4):
        rank.comm.all_reduce(one)
        if rank.rank == 0:
            time.sleep(0.03 * turn**2)  # by then the others sleep, and have checked their peers
            kernel.signal(next_rank, turn)
        assert kernel.wait(rank.rank, turn)
        if rank.rank != 0:
            kernel.signal(next_rank, turn)
    synchronize(rank)
    assert kernel.sleepers(rank.rank) == 0
    kernel.word(rank.rank).value = 2**32 - 1
    assert kernel.wait(rank.rank, 2**32 - 3, bits=32)  # even after a wrap-around
    assert kernel.wait(rank.rank, 2**32 - 1, bits=64)
    synchronize(rank)
    kernel.close()


def _life_of_device_communicators(rank: Rank) -> None:
    with contextlib.ExitStack() as stack:
        child = rank.comm.split(0)
        assert child is not None
        stack.enter_context(child)
        first, second = Kernel(child), Kernel(child, lsaBarrierCount=3)
        first.word(rank.rank).value = 1
        assert second.word(rank.rank).value == 0
        first.close()
        with pytest.raises(NcclInvalidArgumentError, match="was destroyed"):
            first.close()
        with pytest.raises(NcclInvalidArgumentError, match="not a device communicator of comm"):
            rank.comm.library.ncclDevCommDestroy(rank.comm.handle, second.struct)
        with nccl.group():  # it is filled at the end
            grouped = child.library.ncclDevCommCreate(child.handle, raw.ncclDevCommRequirements_t())
        del grouped  # and closed with its communicator


def _register(comm: nccl.Communicator) -> None:
    buffer = comm.mem_alloc(PAGE)
    comm.library.ncclCommWindowRegister(comm.handle, buffer.ptr, PAGE, 0)


def _refused(rank: Rank) -> None:
    comm = rank.comm
    wrong: list[tuple[str, dict[str, int], type[NcclError]]] = [
        ("lsaBarrierCount=-1 is negative", {"lsaBarrierCount": -1}, NcclInvalidArgumentError),
        ("GIN", {"railGinBarrierCount": 1}, NcclInvalidArgumentError),
        ("GIN", {"barrierCount": 1}, NcclInvalidArgumentError),
        ("GIN", {"ginForceEnable": True}, NcclInvalidArgumentError),
        ("multicast", {"lsaMultimem": True}, NcclInvalidArgumentError),
        ("CFT", {"cftBarrierCount": 1}, NcclInvalidArgumentError),
        ("initializer", {"magic": 1}, NcclInvalidUsageError),
        (r"NCCL 2.99.0, .* NCCL 2\.3\d", {"version": 29900}, NcclInvalidUsageError),
        (r"NCCL 2.30.7, .* NCCL 2\.3\d", {"version": 23007}, NcclInvalidUsageError),
    ]
    for text, required, error in wrong:
        with pytest.raises(error, match=text):
            Kernel(comm, **required)
    newer = raw.ncclCommProperties_t()
    newer.version = 29900
    with pytest.raises(NcclInvalidUsageError, match=r"NCCL 2.99.0, .* NCCL 2\.3\d"):
        comm.library.ncclCommQueryProperties(comm.handle, newer)
    with pytest.raises(NcclInvalidUsageError, match="bytes of resources on rank 0"):
        Kernel(comm, buffer=PAGE if rank.rank == 0 else 3 * PAGE)
    call = _register if rank.rank == 0 else Kernel
    with pytest.raises(NcclInvalidUsageError, match="the calls of the ranks differ"):
        call(comm)
    Kernel(comm).close()  # it is still usable


_CASES: tuple[Callable[[Rank], None], ...] = (
    _properties,
    _requirements,
    _peers_in_a_window,
    _signals,
    _life_of_device_communicators,
    _refused,
)


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@pytest.mark.parametrize("nranks", [2, 4])
@on_ranks(by="threads")
def test_functions(rank: Rank) -> None:
    for case in _CASES:
        try:
            case(rank)
        except BaseException as error:
            error.add_note(f"in {case.__name__}")
            raise
        synchronize(rank)


def _wait_in_thread(kernel: Kernel, rank: Rank) -> Callable[[], bool]:
    """Wait for a signal that is never sent; return a function that returns the result."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(kernel.wait(rank.rank, 1)), daemon=True)
    thread.start()
    wait_until(lambda: kernel.sleepers(rank.rank) > 0)

    def join() -> bool:
        thread.join(DEADLINE)
        assert not thread.is_alive()
        return results[0]

    return join


@on_ranks(2)
def test_a_waiting_kernel_uses_no_cpu(rank: Rank) -> None:
    kernel = Kernel(rank.comm)
    result = _wait_in_thread(kernel, rank)
    before = time.process_time()
    time.sleep(0.5)
    used = time.process_time() - before
    kernel.signal(rank.rank, 1)
    assert result() is True
    synchronize(rank)
    kernel.close()
    assert used < 0.02, f"{used:.3f} s of CPU in 0.5 s"


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
@on_ranks(2, by="threads")
def test_abort_ends_a_wait(rank: Rank) -> None:
    for end in ("abort", "revoke"):
        child = rank.comm.split(0)
        assert child is not None
        result = _wait_in_thread(Kernel(child), rank)
        synchronize(rank)
        getattr(child, end)()
        assert result() is False
        synchronize(rank)
        if end == "revoke":
            child.close()


@on_ranks(2, fresh=True)
def test_a_wait_is_interrupted(rank: Rank) -> None:
    """In the main thread. The other rank is notified."""
    kernel = Kernel(rank.comm)
    if rank.rank == 1:
        with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 .*interrupted"):
            rank.comm.all_reduce(np.ones(1))
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt_when_blocked()
    with pytest.raises(KeyboardInterrupt):
        kernel.wait(0, 1)
    rank.comm.abort()


def _dies(rank: Rank, file: str) -> None:
    kernel = Kernel(rank.comm)
    if rank.rank == 1:
        while not os.path.exists(file):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    result = _wait_in_thread(kernel, rank)
    Path(file).touch()
    assert result() is False
    with pytest.raises(nccl.NcclRemoteError, match="rank 1"):
        rank.comm.all_reduce(np.ones(1))


def test_a_dead_rank_ends_a_wait(launch: Launcher, tmp_path: Path) -> None:
    outcomes = launch.outcomes(2, _dies, str(tmp_path / "waiting"))
    assert outcomes[0].ok, outcomes[0]


def test_nccl4py(tmp_path: Path) -> None:
    """Unmodified nccl4py: properties, teams, windows and device communicators."""
    pytest.importorskip("nccl.core")
    assert run_client("device_nccl4py.py", 4, tmp_path) == ["done"] * 4
