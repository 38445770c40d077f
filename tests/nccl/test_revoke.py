"""Proves that revoking a communicator ends all calls that block in it, on every rank and at once,
and that a revoked one can still be shrunk, split and closed.
"""

from __future__ import annotations

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import blocked, check_works
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="provider threads")
def test_revoke_ends_blocked_calls(rank: Rank) -> None:
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 2:  # the others wait for it
        rank.wait_event("revoked", 0, 1)
        comm.revoke()
    else:
        with blocked(rank, comm) as raised:
            comm.revoke()
        rank.set_event("revoked")
        assert len(raised) == (rank.provider == "host")
    assert comm.async_error() is None
    with pytest.raises(nccl.NcclInvalidUsageError):
        comm.all_reduce(rank.memory.put(np.ones(1)))
    with pytest.raises(nccl.NcclInvalidUsageError):
        comm.send(rank.memory.put(np.ones(1)), (rank.rank + 1) % 3)
    with pytest.raises(nccl.NcclInvalidArgumentError):
        comm.revoke()
    with pytest.raises(nccl.NcclInvalidArgumentError):
        comm.finalize()
    assert comm.async_error() is None
    for _ in range(2):
        with comm.split(0, key=-rank.rank) as child:
            check_works(rank, child, [2, 1, 0])
    if rank.rank != 1:
        with comm.shrink([1]) as child:
            check_works(rank, child, [0, 2])


@on_ranks(3)
def test_revoke_by_one_rank_frees_the_others(rank: Rank) -> None:
    """On hostnccl one rank's revoke ends the others' operations, on streams and messages too."""
    comm, stream = rank.comm, rank.stream()
    check_works(rank, comm, [0, 1, 2])
    rank.report("ready")
    array = np.ones(100_000, np.float32)
    match rank.rank:
        case 0:
            rank.wait_event("enqueued", 2)
            comm.revoke()
        case 1:
            with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 .* revoked"):
                comm.recv(array, 2)
        case 2:
            comm.all_reduce(array, stream=stream)
            rank.set_event("enqueued")
            with pytest.raises(nccl.NcclRemoteError, match=r"rank 0 .* revoked"):
                stream.synchronize()
            assert isinstance(comm.async_error(), nccl.NcclRemoteError)
    if rank.rank:
        with pytest.raises(nccl.NcclRemoteError, match="revoked"):
            comm.split(0)
        comm.revoke()
    with comm.split(0) as child:
        child.all_reduce(array, stream=stream)
        stream.synchronize()
        check_works(rank, child, [0, 1, 2])
