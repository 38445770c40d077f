"""Proves that revoking a communicator ends all calls that block in it, and that a revoked one can
still be shrunk, split and closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support.blocking import wait_until_blocked
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@contextlib.contextmanager
def _blocked(rank: Rank, comm: nccl.Communicator) -> Iterator[list[nccl.NcclError]]:
    """A thread is in an all_reduce that cannot finish; afterwards it has ended. The list has what
    it raised: nothing on a GPU, where the kernel is ended and not the call.
    """
    raised: list[nccl.NcclError] = []
    buffer = rank.memory.put(np.ones(1000, np.float32))

    def reduce() -> None:
        try:
            comm.all_reduce(buffer)
        except nccl.NcclError as error:
            raised.append(error)

    thread = threading.Thread(target=reduce)
    thread.start()
    wait_until_blocked(thread)
    if rank.provider == "cuda":
        time.sleep(0.2)  # until the stream of each rank is in the operation
    yield raised
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("threads", [False, True])
@on_ranks(3, by="provider threads")
def test_revoke_ends_blocked_calls(rank: Rank) -> None:
    comm = rank.comm
    check_works(rank, comm, [0, 1, 2])
    if rank.rank == 2:  # the others wait for it
        rank.wait_event("revoked", 0, 1)
        comm.revoke()
    else:
        with _blocked(rank, comm) as raised:
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
