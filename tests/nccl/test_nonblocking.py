"""Proves that a communicator with Config(blocking=0) can be polled during its whole life: ready is
false while ranks are missing, wait_ready ends at its timeout and can be called again, and failures
are raised; for creating, splitting, shrinking, growing, suspending, revoking and finalizing.
"""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path

import numpy as np
import pytest

from pynccl import _C, nccl
from tests.nccl.test_life import carry, check_works
from tests.support import gpu
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

LATE = 0.8  # seconds that the last rank is late


def _config() -> nccl.Config:
    return nccl.Config(blocking=False)


def _until_ready(rank: Rank, comm: nccl.Communicator, stage: str) -> nccl.Communicator:
    """Poll like a program. The last rank is late, so the others find it unfinished."""
    deadline = time.monotonic() + 20
    unfinished = 0
    while not comm.ready:
        unfinished += 1
        assert isinstance(comm.async_error(), nccl.NcclInProgressError | None)
        assert time.monotonic() < deadline
        rank.set_event(stage)
        time.sleep(0.005)
    rank.set_event(stage)
    if rank.provider == "host" and rank.rank != rank.nranks - 1:
        assert unfinished
    assert comm.ready
    comm.wait_ready(0)
    return comm


def _late(rank: Rank, stage: str, first: int = 0) -> None:
    """The last rank follows after the polls of the others. On GPUs their calls may block."""
    if rank.rank < rank.nranks - 1:
        return
    if rank.provider == "host" or stage == "init":
        rank.wait_event(stage, *range(first, rank.rank))
    else:
        time.sleep(LATE)


def _works(rank: Rank, comm: nccl.Communicator, members: list[int]) -> None:
    buffer = rank.memory.put(np.full(1000, 1.0 + rank.rank))
    comm.all_reduce(buffer)
    comm.wait_ready(20)
    assert (rank.memory.get(buffer) == sum(1.0 + member for member in members)).all()
    assert (comm.rank, comm.nranks) == (members.index(rank.rank), len(members))


def _end(comm: nccl.Communicator) -> None:
    comm.finalize()
    comm.wait_ready(20)
    comm.close()


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="provider threads", ids=2)
def test_a_whole_life(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommShrink", "ncclCommSuspend", "ncclCommRevoke")
    everyone = list(range(rank.nranks))
    carry(rank, None)  # warms up the processes
    _late(rank, "init")
    comm = _until_ready(rank, rank.communicator(1, config=_config()), "init")
    _works(rank, comm, everyone)

    carry(rank, None)
    _late(rank, "split")
    child = _until_ready(rank, comm.split(0, config=_config()), "split")
    _works(rank, child, everyone)
    _end(child)

    inherited = comm.split(0)
    inherited.wait_ready(20)
    _works(rank, inherited, everyone)
    _end(inherited)

    if rank.rank:
        _late(rank, "shrink", 1)
        shrunk = _until_ready(rank, comm.shrink([0]), "shrink")
        _works(rank, shrunk, everyone[1:])
        _end(shrunk)
    comm.wait_ready(20)

    carry(rank, None)
    _late(rank, "suspend")
    comm.suspend()
    _until_ready(rank, comm, "suspend")
    assert comm.memory_stats().suspended
    comm.resume()
    comm.wait_ready(20)
    _works(rank, comm, everyone)

    comm.revoke()
    comm.wait_ready(20)
    with pytest.raises(nccl.NcclInvalidUsageError):
        comm.all_reduce(rank.memory.put(np.ones(1)))
    comm.close()


@on_ranks(3, by="provider", ids=2)
def test_grow(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommGrow")
    options = {"config": _config(), "provider": rank.provider, "device": rank.device}
    carry(rank, None)
    if rank.rank < 2:
        comm = nccl.Communicator(2, rank.unique_ids[1], rank.rank, **options)
        comm.wait_ready(20)
        own = comm.get_unique_id() if rank.rank == 0 else None
        carry(rank, bytes(own) if own is not None else None)
        grown = comm.grow(3, own)
    else:
        unique_id = carry(rank, None)
        _late(rank, "grow")
        comm = None
        grown = nccl.Communicator.join(3, unique_id, 2, **options)
    _until_ready(rank, grown, "grow")
    _works(rank, grown, [0, 1, 2])
    _end(grown)
    if comm is not None:
        comm.close()


@on_ranks(2, ids=2)
def test_wait_ready_has_a_timeout(rank: Rank) -> None:
    _ = rank.comm
    if rank.rank == 0:
        comm = rank.communicator(1, config=_config())
        for timeout in (0.0, 0.05):
            with pytest.raises(nccl.NcclTimeoutError, match="did not complete within"):
                comm.wait_ready(timeout)
        assert not comm.ready
        with pytest.raises(ValueError, match="timeout: -1"):
            comm.wait_ready(-1)
        with pytest.raises(TypeError):
            comm.wait_ready("1")
    carry(rank, None)
    if rank.rank == 1:
        comm = rank.communicator(1, config=_config())
    comm.wait_ready()
    _works(rank, comm, [0, 1])
    _end(comm)


@on_ranks(2, ids=2)
def test_failures_are_raised(rank: Rank) -> None:
    """By ready and wait_ready(), with their class."""
    comm = nccl.Communicator(
        2 + rank.rank, rank.unique_ids[1], rank.rank, config=_config(), provider="host"
    )
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about nranks"):
        comm.wait_ready(20)
    with pytest.raises(nccl.NcclInvalidUsageError, match="disagree about nranks"):
        _ = comm.ready
    comm.abort()
    with pytest.raises(ValueError, match="closed"):
        _ = comm.ready
    parent = rank.comm
    grown = parent.grow(3, config=_config())
    with pytest.raises(nccl.NcclInvalidUsageError, match="no rank passes a uniqueId"):
        grown.wait_ready(20)
    grown.abort()
    check_works(rank, parent, [0, 1])


@on_ranks(2, by="provider", ids=2)
def test_operations_in_a_row(rank: Rank) -> None:
    """NCCL refuses an operation while another one is in progress, so each call waits for it."""
    blocking, comm = rank.communicator(0), rank.communicator(1, config=_config())
    comm.wait_ready(20)
    one, two = (rank.memory.put(np.full(8, 1.0 + rank.rank)) for _ in range(2))
    for _ in range(2):
        comm.all_reduce(one)
    with nccl.group():
        comm.send(one, 1 - rank.rank)
        comm.recv(two, 1 - rank.rank)
    comm.all_reduce(two)
    with pytest.raises(ValueError, match="use a group for each"), nccl.group():  # noqa: PT012
        comm.all_reduce(one)
        blocking.all_reduce(two)
    stream = rank.stream()
    with nccl.capture(stream) as graph:
        comm.all_reduce(one, stream=stream)
        comm.all_reduce(two, stream=stream)
    graph.launch(stream)
    stream.synchronize()
    assert (rank.memory.get(one) == 12).all(), rank.memory.get(one)
    assert (rank.memory.get(two) == 24).all(), rank.memory.get(two)
    graph.close()
    _end(comm)
    blocking.close()


@on_ranks(2, by="provider", ids=3)
def test_calls_before_it_is_ready(rank: Rank) -> None:
    """A call that NCCL would refuse for good does not reach it. close() never destroys."""
    gpu.require(rank.provider, "ncclCommSplit", "ncclCommFinalize")
    buffer = rank.memory.put(np.ones(4))
    rank.wait_event("refused", *range(rank.rank))  # rank 1 is late
    comm = rank.communicator(1, config=_config())
    if rank.rank == 0:
        for call in (
            lambda: comm.all_reduce(buffer),
            lambda: comm.split(0),
            comm.finalize,
        ):
            with pytest.raises(ValueError, match="a call on it is in progress; call wait_ready"):
                call()
        alone = nccl.Communicator(
            2, rank.unique_ids[2], 0, config=_config(), provider=rank.provider, device=rank.device
        )
        alone.close()
        with nccl.Communicator(
            1, nccl.get_unique_id(rank.provider), 0, provider=rank.provider, device=rank.device
        ) as other:  # this thread is not in a group of NCCL
            assert other.nranks == 1
        rank.set_event("refused")
    comm.wait_ready(20)
    _works(rank, comm, [0, 1])
    comm.finalize()
    comm.close()


@pytest.mark.gpu
@on_ranks(2, provider="cuda", ids=2)
def test_the_time_limit_of_the_first_operation(rank: Rank) -> None:
    """It connects, which lasts until all ranks have called theirs."""
    if rank.comm.library.version < 22400:
        pytest.skip("operations connect from NCCL 2.24, the loaded one is older")
    config = nccl.Config(blocking=False, timeout=0.6)
    comm = rank.communicator(1, config=config)
    comm.wait_ready(20)
    if rank.rank == 0:
        with pytest.raises(nccl.NcclTimeoutError, match=r"all_reduce #1 .* within 0.6 s"):
            comm.all_reduce(rank.memory.put(np.ones(4)))
        rank.set_event("expired")
    rank.wait_event("expired", 0)
    comm.abort()


_LATE_CHILD = """
static void (*hook)(void);
static void** written;
void set_hook(void (*function)(void)) { hook = function; }
void write_child(void) { static int child; *written = &child; }
int ncclCommSplit(void* comm, int color, int key, void** child, void* config) {
  written = child;
  return 0;
}
int hostCtxGetCurrent(void** context) {
  void (*function)(void) = hook;
  hook = 0;
  if (function) function();
  return 0;
}
#define hostCtxGetCurrent hostCtxGetCurrent_of_the_compiler
"""


def test_an_abort_while_a_child_gets_its_handle(tmp_path: Path) -> None:
    """The monitor forgets the child, which polls the handle that it has just received."""
    path = compile_nccl(tmp_path, 23200, _LATE_CHILD, with_communicators=True)
    library = ctypes.CDLL(path)
    with nccl.Communicator(1, bytes(128), 0, provider=path, config=_config()) as comm:
        comm.wait_ready(0)
        child = comm.split(0)
        assert child is not None
        aborts = ctypes.CFUNCTYPE(None)(child.abort)
        library.write_child()
        library.set_hook(aborts)
        with pytest.raises(ValueError, match="closed"):
            child.wait_ready(0)
        assert child.closed
        opened = json.loads(_C.flight_dump_json(""))["communicators"]
        assert len(opened) == 1


@on_ranks(2, by="provider", ids=2, env={"NCCL_COMM_BLOCKING": "0"})
def test_non_blocking_by_the_environment(rank: Rank) -> None:
    with rank.communicator(1) as comm:
        for _ in range(2):
            comm.all_reduce(rank.memory.put(np.ones(4)))
        with comm.split(0) as child:
            check_works(rank, child, [0, 1])
        check_works(rank, comm, [0, 1])


@on_ranks(3, by="provider", ids=2)
def test_init_timeout(rank: Rank) -> None:
    """Config(init_timeout=) limits the creation, even of children. Other calls block as usual."""
    with rank.communicator(1, config=nccl.Config(init_timeout=20)) as comm:
        check_works(rank, comm, [0, 1, 2])
        comm.suspend()
        comm.resume()
        with comm.split(0) as child:
            check_works(rank, child, [0, 1, 2])
        if rank.rank:
            with comm.shrink([0]) as child:
                check_works(rank, child, [1, 2])
        comm.revoke()
        with pytest.raises(nccl.NcclInvalidUsageError):
            comm.all_reduce(rank.memory.put(np.ones(1)))
