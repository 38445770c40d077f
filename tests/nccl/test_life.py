"""Proves that communicators are created from others: shrunk, grown by new processes, created from
several ids, in groups and threads; and that wrong arguments are refused and leave the communicator
usable. tests/reliability/test_kill_matrix.py tests dead and stopped ranks,
tests/hostnccl/test_interactions.py leaks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.launcher import Launcher, Run
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def check_works(rank: Rank, comm: nccl.Communicator, members: list[int]) -> None:
    """Check that its ranks are these ranks of the world, in this order, and an all-reduce."""
    assert comm.nranks == len(members)
    assert comm.rank == members.index(rank.rank)
    for elements in (1, 100_003):
        buffer = rank.memory.put(np.full(elements, 1.0 + rank.rank, np.float32))
        comm.all_reduce(buffer)
        assert (rank.memory.get(buffer) == sum(1.0 + member for member in members)).all()


def carry(rank: Rank, data: bytes | None, root: int = 0) -> bytes:
    """The root's bytes on every rank of the world, through its own communicator."""
    array = np.frombuffer(data or bytes(128), np.uint8).copy()
    buffer = rank.memory.put(array)
    rank.comm.broadcast(buffer, root)
    return bytes(rank.memory.get(buffer).tobytes())


# Shrink


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(4, by="provider threads")
def test_shrink_without_a_rank(rank: Rank) -> None:
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2, 3])
    if rank.rank == 1:
        return
    for _ in range(2):
        with comm.shrink([1]) as child:
            check_works(rank, child, [0, 2, 3])
            if rank.rank != 0:
                with child.shrink((np.int64(0),)) as grandchild:
                    check_works(rank, grandchild, [2, 3])


@pytest.mark.gpu
@on_ranks(3, provider="cuda")
def test_shrink_with_abort_of_a_communicator_with_an_error(rank: Rank) -> None:
    """NCCL refuses it, as after the end of a rank. pynccl clears the error first."""
    comm = rank.communicator(config=nccl.Config(blocking=False))
    comm.wait_ready(20)
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 2:
        return
    with pytest.raises(nccl.NcclInvalidArgumentError):
        comm.library.ncclAllReduce(0, 0, 4, 99, raw.ncclSum, comm.handle, 0)
    assert isinstance(comm.async_error(), nccl.NcclInvalidArgumentError)
    with comm.shrink([2], abort=True) as child:
        child.wait_ready(20)
        check_works(rank, child, [0, 1])
    comm.abort()


@on_ranks(3)
def test_shrink_after_an_error(rank: Rank) -> None:
    """Only shrink(abort=True) clears the error."""
    comm = rank.comm
    with pytest.raises(nccl.NcclError):
        comm.all_reduce(np.ones(3 + (rank.rank == 2)))
    if rank.rank == 2:
        comm.abort()
        return
    with pytest.raises(nccl.NcclError, match="different calls"):
        comm.shrink([2])
    time.sleep(0.3 * rank.rank)  # rank 0 polls a late rank, whose error does not matter
    with comm.shrink([2], abort=True) as child:
        check_works(rank, child, [0, 1])
    comm.close()


@on_ranks(2)
def test_a_refused_shrink_with_abort_changes_nothing(rank: Rank) -> None:
    """On hosts, the configuration is checked before the operations are ended."""
    comm = rank.comm
    config = nccl.Config(num_rma_ctx=64, num_rma_sig=1024)
    with pytest.raises(nccl.NcclInvalidArgumentError, match="signals"):
        comm.shrink([1 - rank.rank], abort=True, config=config)
    assert not comm.revoked
    check_works(rank, comm, [0, 1])


@on_ranks(2, by="provider")
def test_wrong_arguments_of_shrink(rank: Rank) -> None:
    comm = rank.comm
    for exclude, error, text in [
        ([], ValueError, "exclude: the sequence is empty"),
        ([2], ValueError, "exclude: rank 2 is out of range for a communicator of size 2"),
        ([-1], ValueError, "exclude: rank -1"),
        ([rank.rank], ValueError, "is this rank"),
        ([1 - rank.rank] * 2, ValueError, "is given twice"),
        ("01", TypeError, "exclude: expected a sequence of ranks"),
        (1, TypeError, "exclude: expected a sequence"),
        (["x"], TypeError, "exclude"),
    ]:
        with pytest.raises(error, match=text):
            comm.shrink(exclude)
    with pytest.raises(TypeError, match="config"):
        comm.shrink([1 - rank.rank], config={})
    check_works(rank, comm, [0, 1])


# Grow


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(4, by="provider threads", ids=2)
def test_grow_from_two_to_four(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommGrow")
    carry(rank, None)  # connects the world's own communicator, which transfers the id
    old = rank.nranks // 2
    if rank.rank < old:
        comm = nccl.Communicator(
            old, rank.unique_ids[1], rank.rank, provider=rank.provider, device=rank.device
        )
        check_works(rank, comm, list(range(old)))
        root = old - 1
        own = comm.get_unique_id() if rank.rank == root else None
        carry(rank, bytes(own) if own is not None else None, root)
        grown = comm.grow(rank.nranks, own)
    else:
        comm = None
        unique_id = carry(rank, None, old - 1)
        grown = nccl.Communicator.join(
            rank.nranks, unique_id, rank.rank, provider=rank.provider, device=rank.device
        )
    with grown:
        check_works(rank, grown, list(range(rank.nranks)))
        if comm is not None:  # it stays usable
            check_works(rank, comm, list(range(old)))
            if rank.provider == "host" and own is not None:
                with pytest.raises(nccl.NcclInvalidArgumentError, match="or has been used"):
                    comm.grow(rank.nranks, own)
            comm.close()
        check_works(rank, grown, list(range(rank.nranks)))


@on_ranks(2, by="provider", ids=2)
def test_wrong_arguments_of_grow(rank: Rank) -> None:
    comm = rank.comm
    with pytest.raises(ValueError, match="nranks: 2 must be above the current size 2"):
        comm.grow(2)
    with pytest.raises(TypeError, match="unique_id"):
        comm.grow(3, "id")
    with pytest.raises(ValueError, match=r"rank: rank 3 is out of range for .* of size 3"):
        nccl.Communicator.join(3, bytes(128), 3, provider=rank.provider)
    check_works(rank, comm, [0, 1])
    if rank.provider == "cuda":
        return
    init_id = nccl.get_unique_id(rank.provider)
    with pytest.raises(nccl.NcclInvalidArgumentError, match="created by ncclGetUniqueId"):
        comm.grow(3, init_id)
    with pytest.raises(nccl.NcclInvalidArgumentError, match="created by ncclGetUniqueId"):
        nccl.Communicator.join(3, init_id, 2, provider=rank.provider)
    own = comm.get_unique_id()
    with (
        rank.communicator(1) as other,
        pytest.raises(nccl.NcclInvalidArgumentError, match=r"not created .* for this rank of comm"),
    ):
        comm.grow(3, other.get_unique_id())
    with pytest.raises(nccl.NcclInvalidUsageError, match="pass it to ncclCommGrow first"):
        comm.get_unique_id()
    with pytest.raises(nccl.NcclInvalidArgumentError, match="created by ncclCommGetUniqueId"):
        nccl.Communicator(3, own, 2, provider=rank.provider)
    with pytest.raises(nccl.NcclInvalidUsageError, match="ranks 0 and 1 both pass"):
        comm.grow(3, own)
    with pytest.raises(nccl.NcclInvalidArgumentError, match="or has been used"):
        comm.grow(3, own)
    with pytest.raises(nccl.NcclInvalidUsageError, match="no rank passes a uniqueId"):
        comm.grow(3)
    with pytest.raises(nccl.NcclInvalidUsageError, match="rank 0 passes 3, rank 1 passes 4"):
        comm.grow(3 + rank.rank, comm.get_unique_id() if rank.rank == 0 else None)
    check_works(rank, comm, [0, 1])


@on_ranks(2, by="provider")
def test_growing_comes_first(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommGetUniqueId")
    with rank.communicator() as comm:
        comm.get_unique_id()
        for call in (lambda: comm.split(0), lambda: comm.shrink([1 - rank.rank])):
            with pytest.raises(ValueError, match=r"call grow\(\) before creating"):
                call()
        comm.abort()


@on_ranks(1, by="provider", fresh=True)
def test_grow_refuses_an_id_from_the_environment(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclCommGetUniqueId")
    comm = rank.comm
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_COMM_ID", "127.0.0.1:23456")
        with pytest.raises(ValueError, match="NCCL_COMM_ID"):
            comm.get_unique_id()


def _join_a_dead_rank(rank: Rank) -> None:
    if rank.rank == 0:
        with nccl.Communicator(1, rank.unique_ids[1], 0, provider="host") as comm:
            carry(rank, bytes(comm.get_unique_id()))
            rank.report("ready")
            time.sleep(60)
    unique_id = carry(rank, None)
    rank.report("ready")
    with pytest.raises(nccl.NcclRemoteError, match="which had created the uniqueId, has exited"):
        nccl.Communicator.join(2, unique_id, 1, provider="host")
    rank.comm.abort()


def test_joining_a_dead_rank_fails(launch: Launcher) -> None:
    def kill(run: Run) -> None:
        run.gather_reports()
        time.sleep(0.2)
        run.kill(0)

    outcomes = launch.outcomes(2, _join_a_dead_rank, while_running=kill, ids=2, timeout=30)
    assert outcomes[1].ok, outcomes[1].trace


# Several ids, groups, raw


@on_ranks(4, by="provider", ids=5)
def test_several_ids(rank: Rank) -> None:
    for ids in (rank.unique_ids[:3], tuple(nccl.UniqueId(i) for i in rank.unique_ids[3:5])):
        with nccl.Communicator(
            rank.nranks, ids, rank.rank, provider=rank.provider, device=rank.device
        ) as comm:
            check_works(rank, comm, list(range(rank.nranks)))
    with pytest.raises(ValueError, match="unique_id: the sequence is empty"):
        nccl.Communicator(4, [], 0, provider=rank.provider)
    with pytest.raises(ValueError, match="unique_id: 5 ids for 4 ranks"):
        nccl.Communicator(4, rank.unique_ids[:5], 0, provider=rank.provider)
    with pytest.raises(TypeError, match="unique_id"):
        nccl.Communicator(4, [rank.unique_ids[0], 3], 0, provider=rank.provider)


@on_ranks(1)
def test_one_thread_with_several_ranks(rank: Rank) -> None:
    comms = nccl.Communicator.init_all(3, provider=rank.provider)

    def sums(some: list[nccl.Communicator]) -> None:
        buffers = [rank.memory.put(np.full(5, 1.0 + comm.rank)) for comm in some]
        with nccl.group():
            for comm, buffer in zip(some, buffers, strict=True):
                comm.all_reduce(buffer)
        total = sum(1.0 + number for number in range(len(some)))
        for buffer in buffers:
            assert (rank.memory.get(buffer) == total).all()

    with nccl.group():
        shrunk = [comms[0].shrink([1]), comms[2].shrink([1])]
    assert [(comm.rank, comm.nranks) for comm in shrunk] == [(0, 2), (1, 2)]
    sums(shrunk)
    unique_id = shrunk[1].get_unique_id()
    with nccl.group():
        grown = [shrunk[0].grow(3), shrunk[1].grow(3, unique_id)]
        grown.append(nccl.Communicator.join(3, unique_id, 2, provider=rank.provider))
    sums(grown)
    sums(comms)
    with pytest.raises(ZeroDivisionError), nccl.group():  # noqa: PT012
        comms[0].shrink([1])
        raise ZeroDivisionError
    with nccl.group():
        aborted = [comms[0].shrink([1], abort=True), comms[2].shrink([1], abort=True)]
    sums(aborted)
    with pytest.raises(nccl.NcclInvalidUsageError, match=r"abort=True\) has ended its operations"):
        comms[0].all_reduce(rank.memory.put(np.ones(1)))
    for comm in [*comms, *shrunk, *grown, *aborted]:
        comm.abort() if comm in comms else comm.close()


@on_ranks(2)
def test_wrong_arguments_of_the_c_functions(rank: Rank) -> None:
    lib, comm = rank.comm.library, rank.comm.handle
    other = 1 - rank.rank
    shrink, grow, wrong = lib.ncclCommShrink, lib.ncclCommGrow, nccl.NcclInvalidArgumentError
    calls: list[tuple[Any, ...]] = [
        ("shrinkFlags=2", shrink, comm, [other], 1, None, 2),
        ("excludeRanksCount=2", shrink, comm, [other, 0], 2, None, 0),
        ("excludeRanksCount=0", shrink, comm, [], 0, None, 1),
        ("excludeRanksList", shrink, comm, None, 1, None, 1),
        ("contains 5, which is not in", shrink, comm, [5], 1, None, 1),
        ("which is this rank", shrink, comm, [rank.rank], 1, None, 1),
        ("rank=0: a rank of the parent communicator", grow, comm, 3, None, 0, None),
        ("nRanks=2", grow, comm, 2, None, -1, None),
        ("uniqueId is null", grow, None, 2, None, 1, None),
        ("rank=-1 is not in", grow, None, 2, None, -1, None),
        ("revokeFlags=1", lib.ncclCommRevoke, comm, 1),
        ("stat=4", lib.ncclCommMemStats, comm, 4),
        ("comm is null", lib.ncclCommGetUniqueId, None),
        ("comm is null", lib.ncclCommResume, None),
    ]
    for text, call, *arguments in calls:
        with pytest.raises(wrong, match=text):
            call(*arguments)
    for value in (-2, 3):
        config = raw.ncclConfig_t()
        config.shrinkShare = value
        with pytest.raises(wrong, match=f"config->shrinkShare={value}"):
            shrink(comm, [other], 1, config, 0)
    lib.ncclCommRevoke(None, 0)  # as in NCCL, no error
    lib.ncclCommSuspend(comm, 0)  # nothing to suspend
    with pytest.raises(nccl.NcclInvalidUsageError, match="not suspended"):
        lib.ncclCommResume(comm)
    check_works(rank, rank.comm, [0, 1])
