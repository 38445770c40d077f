"""Memory that all ranks of a test can load and store, and the tests of all languages of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from pynccl import nccl
from tests.support.rank import Rank
from tests.support.tier import FULL

__all__ = ["Shared", "check_rotation_in_a_graph", "shared", "sizes_and_worlds"]

# Each rank that is a process compiles its kernels.
sizes_and_worlds = pytest.mark.parametrize(
    ("nranks", "threads"),
    [(2, False), (4, True), *([(2, True), (4, False)] if FULL else [])],
    ids=lambda value: ["processes", "threads"][value] if isinstance(value, bool) else str(value),
)


class Shared(NamedTuple):
    """This rank's memory, the addresses on all ranks, and the owner."""

    own: np.ndarray
    pointers: np.ndarray
    owner: object


def shared(rank: Rank, count: int, dtype: str = "int64") -> Shared:
    """Allocate on all ranks; zeroed on all ranks when it returns."""
    buffer = rank.comm.symmetric_empty(count, dtype)
    own = np.from_dlpack(buffer)
    own[:] = 0
    pointers = np.from_dlpack(buffer.window.peer_pointers()).astype(np.int64)
    rank.comm.all_reduce(np.zeros(1))
    return Shared(own, pointers, buffer)


def check_rotation_in_a_graph(
    rank: Rank, memory: Shared, launches: int, rotate: Callable[[], object]
) -> None:
    """Capture a kernel and an all_reduce of its result, and launch the graph.

    Args:
        rank: this rank.
        memory: a number on each rank; at first the rank.
        launches: how often the graph is launched.
        rotate: a kernel that gives each rank the number of the previous one.
    """
    memory.own[0] = rank.rank
    total, stream = np.zeros(1, np.int64), rank.stream()
    with nccl.capture(stream) as graph:
        stream.launch(rotate)
        rank.comm.all_reduce(memory.own, out=total, stream=stream)
    for launch in range(1, launches + 1):
        graph.launch(stream)
        stream.synchronize()
        assert memory.own[0] == (rank.rank - launch) % rank.nranks
        assert total[0] == sum(range(rank.nranks))
    graph.close()
    stream.close()
