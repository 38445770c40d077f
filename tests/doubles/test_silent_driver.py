"""A driver that does not respond blocks the monitor, while operations continue and time out."""

from __future__ import annotations

import queue

import numpy as np

from pynccl import nccl
from tests.doubles import library
from tests.support.blocking import in_threads, wait_until
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_LONG = 30.0  # seconds


@on_ranks(2, provider="cuda", timeout=90)
def test_nothing_waits_for_a_driver_that_does_not_respond(rank: Rank) -> None:
    comm, other = rank.comm, rank.comm.split(0)
    assert other is not None
    buffer = rank.memory.put(np.ones(4, np.float32))
    stream, foreign = rank.stream(), library.driver().new("cuStreamCreate", 1)
    for one in (comm, other):
        one.all_reduce(buffer, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        rank.wait_event("expired", 0)
        comm.abort()
        other.abort()
        return
    expired: queue.Queue[Exception] = queue.Queue()
    comm.on_timeout = lambda _comm, error: expired.put(error)
    comm.timeout = 0.5
    with library.blocked_queries() as blocked:
        comm.all_reduce(buffer, stream=stream)
        wait_until(blocked, _LONG)
        for each, on in ((comm, foreign), (other, foreign), (other, stream)):
            in_threads(lambda each=each, on=on: each.all_reduce(buffer, stream=on))
        error = expired.get(timeout=_LONG)
        in_threads(comm.flight_record)
    rank.set_event("expired")
    assert isinstance(error, nccl.NcclTimeoutError)
    assert "all_reduce #" in str(error)
    assert "the GPU driver has not answered for" in str(error)
    comm.abort()
    other.abort()
