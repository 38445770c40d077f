"""Barriers: all ranks here, or the names of those that are not."""

from __future__ import annotations

import itertools
import pdb
import sys
import warnings
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.errors import BackendTimeoutError
from pynccl.mirror.initialize import timeout_of
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
    GroupMember,
    _rank_not_in_group,
    get_rank,
    group_or_default,
    warn_outside,
)
from pynccl.mirror.work import Work

__all__ = ["barrier", "breakpoint", "monitored_barrier"]


def barrier(
    group: ProcessGroup | None = GroupMember.WORLD,
    async_op: bool = False,
    device_ids=None,
    timeout: timedelta | None = None,
):
    """Wait until every rank is here: an all_reduce of one element, and the caller blocks.

    Args:
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
        device_ids: the GPU to use, in a list.
        timeout: how long to wait; None is the group's own.
    """
    pg = group_or_default(group or None)
    if _rank_not_in_group(pg):
        return warn_outside("barrier")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"timeout: expected a datetime.timedelta, got {timeout!r}")
    tensor = torch.zeros(1, dtype=torch.uint8, device=_device(pg, device_ids))
    work: Work | None = pg.run(
        "barrier",
        tensor,
        lambda comm, stream: comm.all_reduce(tensor, stream=stream),
        [tensor],
        async_op or timeout is not None,
    )
    if async_op:
        return work
    if work is not None:
        work.wait(timeout or timedelta(0))
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return None


def _device(pg: ProcessGroup, device_ids: Any) -> torch.device:
    if isinstance(device_ids, list) and device_ids:
        return torch.device("cuda", device_ids[0])
    if pg.bound_device_id is not None:
        return pg.bound_device_id
    return torch.device(pg.object_device)


def monitored_barrier(
    group: ProcessGroup | None = GroupMember.WORLD,
    timeout=None,
    wait_all_ranks: bool = False,
):
    """Wait until every rank is here, by the store; rank 0 of the group names those that are not.

    Args:
        group: the group; None is the default one.
        timeout: how long to wait; None is the default of the group's backend.
        wait_all_ranks: whether rank 0 names all missing ranks, or the first it finds.

    Raises:
        DistBackendError: on rank 0, with the missing ranks; on the others, when rank 0 did not
            let them go.
    """
    if _rank_not_in_group(group):
        return warn_outside("monitored_barrier")
    pg = group_or_default(group)
    if isinstance(timeout, float):
        warnings.warn(
            "Please specify timeout arg as a timedelta. "
            f"Converting current value of {timeout} assuming it represents seconds",
            stacklevel=2,
        )
        timeout = timedelta(seconds=timeout)
    limit = timeout_of(timeout, pg.config)
    room = PrefixStore(f"monitored barrier/{pg.barriers}", pg.store)
    pg.barriers += 1
    if pg.rank() == 0:
        _collect(pg, room, limit, wait_all_ranks)
    else:
        _report(pg, room, limit)
    return None


def _collect(pg: ProcessGroup, room: Store, limit: timedelta, wait_all_ranks: bool) -> None:
    if limit <= timedelta(0):
        raise BackendTimeoutError(
            "[Rank 0]: Rank 0 timed out in monitoredBarrier after 0 ms", 8, "monitored_barrier", 0
        )
    others = [str(rank) for rank in range(1, pg.size())]
    missing: list[str] = []
    try:
        if others:
            room.wait(others, max(limit, timedelta(milliseconds=1)))
    except RuntimeError:
        missing = [rank for rank in others if not room.check([rank])]
    if missing:
        milliseconds = int(limit.total_seconds() * 1000)
        names = ", ".join(missing if wait_all_ranks else missing[:1])
        ranks = "Ranks" if wait_all_ranks else "Rank"
        raise BackendTimeoutError(
            f"[Rank 0]: {ranks} {names} failed to pass monitoredBarrier in {milliseconds} ms",
            8,
            "monitored_barrier",
            0,
        )
    room.set("go", "1")


def _report(pg: ProcessGroup, room: Store, limit: timedelta) -> None:
    room.set(str(pg.rank()), "1")
    try:
        room.wait(["go"], max(limit, timedelta(milliseconds=1)))
    except RuntimeError as error:
        raise BackendTimeoutError(
            f"[Rank {pg.rank()}]: Rank {pg.rank()} successfully reached monitoredBarrier, but "
            "received errors while waiting for send/recv from rank 0. Please check rank 0 logs for "
            "faulty rank.",
            8,
            "monitored_barrier",
            pg.rank(),
        ) from error


def breakpoint(rank: int = 0, skip: int = 0, timeout_s=3600):
    """Stop one rank in the debugger while the others wait for it.

    Args:
        rank: the rank that stops.
        skip: how many calls to pass over first.
        timeout_s: how long the others wait, in seconds.
    """
    if next(_calls) < skip:
        return
    if get_rank() == rank:
        frame: FrameType | None = sys._getframe().f_back
        pdb.Pdb().set_trace(frame)
    barrier(timeout=timedelta(seconds=timeout_s))


_calls = itertools.count()
