"""Memory that all ranks of a test can load and store."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.support.rank import Rank

__all__ = ["Shared", "shared"]


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
