"""What a rank does for benchmarks.recovery: makes communicators from others, and checks them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from pynccl import nccl, testing

__all__ = ["COLUMNS", "Times", "measure"]

Times: TypeAlias = dict[str, list[float]]

COLUMNS = ("init", "shrink", "grow", "abort + init", "recover", "killed to recovered")
_AHEAD = 0.3  # seconds until the last rank is killed


def measure(rank: testing.Rank) -> Times:
    """Seconds of this rank by column. The last rank of the world ends by SIGKILL.

    Args:
        rank: this rank; its world has four unique ids.
    """
    times: Times = {}
    comm = rank.comm
    is_last = rank.rank == rank.world_size - 1

    def timed(column: str, change: Callable[[], nccl.Communicator]) -> nccl.Communicator:
        began = time.perf_counter()
        made = change()
        times[column] = [time.perf_counter() - began]
        return made

    _meet(comm)
    made = timed("init", lambda: rank.communicator(1))
    _check(made)
    _meet(comm)

    def replace() -> nccl.Communicator:
        made.abort()
        return rank.communicator(2)

    replaced = timed("abort + init", replace)
    _check(replaced)
    _meet(comm)
    if not is_last:
        smaller = timed("shrink", lambda: replaced.shrink([rank.world_size - 1], abort=True))
        _check(smaller)
    replaced.abort()

    unique_id = np.zeros(128, np.uint8)
    if rank.rank == 0:
        unique_id[:] = np.frombuffer(bytes(smaller.get_unique_id()), np.uint8)
    comm.broadcast(unique_id, 0)
    id_of_root = unique_id.tobytes() if rank.rank == 0 else None
    _meet(comm)
    if is_last:
        whole = nccl.Communicator.join(
            rank.world_size, unique_id.tobytes(), rank.rank, provider=rank.provider
        )
    else:
        whole = timed("grow", lambda: smaller.grow(rank.world_size, id_of_root))
        smaller.close()
    _check(whole)

    moment = np.array([time.monotonic() + _AHEAD])
    comm.broadcast(moment, 0)
    if is_last:
        time.sleep(max(0.0, moment[0] - time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            whole.all_reduce(np.ones(1, np.float32))
    except nccl.NcclRemoteError:
        pass
    recovered = timed("recover", whole.recover)
    times["killed to recovered"] = [time.monotonic() - moment[0]]
    _check(recovered)
    recovered.close()
    comm.abort()
    return times


def _meet(comm: nccl.Communicator) -> None:
    for _ in range(3):
        comm.all_reduce(np.ones(1, np.float32))


def _check(comm: nccl.Communicator) -> None:
    ranks = np.full(1000, comm.rank, np.int64)
    comm.all_reduce(ranks)
    expected = comm.nranks * (comm.nranks - 1) // 2
    if not (ranks == expected).all():
        raise RuntimeError(f"an all_reduce of {comm.nranks} ranks gave {ranks[0]}, not {expected}")
