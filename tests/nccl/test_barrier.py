"""Proves that no rank's stream continues after Communicator.barrier() before the streams of all
ranks have reached it, as a call, in groups and in graphs.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from pynccl import nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@pytest.mark.parametrize(("nranks", "threads"), [(2, True), (4, False)])
@on_ranks(by="threads")
def test_order(rank: Rank) -> None:
    """The next rank writes into this rank's memory late; after the barrier it is there."""
    comm = rank.comm
    with comm.symmetric_empty(3, "int32") as memory:
        own = np.from_dlpack(memory)
        following = np.from_dlpack(memory.peer((rank.rank + 1) % rank.nranks))
        own[:] = 0
        comm.barrier()
        stream, seen = rank.stream(), []

        def write(turn: int) -> None:
            time.sleep(0.01 * rank.rank)
            following[turn] = turn + 1

        stream.launch(lambda: write(0))
        comm.barrier(stream=stream)
        stream.launch(lambda: seen.append(own[0]))
        stream.synchronize()

        stream.launch(lambda: write(1))
        with nccl.group():
            comm.barrier(stream=stream)
            comm.all_reduce(np.ones(1), stream=stream)
        stream.launch(lambda: seen.append(own[1]))
        stream.synchronize()

        with nccl.capture(stream) as graph:
            stream.launch(lambda: write(2))
            comm.barrier(stream=stream)
            stream.launch(lambda: seen.append(own[2]))
        for _ in range(2):
            graph.launch(stream)
            stream.synchronize()
            comm.barrier()
            own[2] = 0
            comm.barrier()
        graph.close()
        assert seen == [1, 2, 3, 3]


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_on_a_device(rank: Rank) -> None:
    stream = rank.stream()
    for _ in range(3):
        rank.comm.barrier(stream=stream)
    with nccl.capture(stream) as graph:
        rank.comm.barrier(stream=stream)
    graph.launch(stream)
    stream.synchronize()
    graph.close()
