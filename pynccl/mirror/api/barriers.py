"""Barriers: an all_reduce, or through the store, which identifies the missing ranks."""

from __future__ import annotations

import itertools
import pdb
import sys
import warnings
from datetime import timedelta
from types import FrameType

from pynccl.mirror.group import barriers
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import (
    GroupMember,
    _rank_not_in_group,
    get_rank,
    group_or_default,
    warn_outside,
)

__all__ = ["barrier", "breakpoint", "monitored_barrier"]


def barrier(
    group: ProcessGroup | None = GroupMember.WORLD,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """See torch.distributed.barrier.

    Issued as an ncclAllReduce of one byte, which blocks the caller on GPUs as well. timeout is
    available since torch 2.12.
    """
    pg = group_or_default(group or None)
    if _rank_not_in_group(pg):
        warn_outside("barrier")
        return None
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"timeout: expected a datetime.timedelta, got {timeout!r}")
    return barriers.barrier(pg, device_ids, async_op, timeout)


def monitored_barrier(
    group: ProcessGroup | None = GroupMember.WORLD,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """See torch.distributed.monitored_barrier.

    It uses the store for every backend. A timeout of None is the default of the group's backend.
    Rank 0 raises DistBackendError with the missing ranks; the others raise it if rank 0 does not
    confirm.
    """
    if _rank_not_in_group(group):
        warn_outside("monitored_barrier")
        return None
    pg = group_or_default(group)
    if isinstance(timeout, float):
        warnings.warn(
            "Please specify timeout arg as a timedelta. "
            f"Converting current value of {timeout} assuming it represents seconds",
            stacklevel=2,
        )
        timeout = timedelta(seconds=timeout)
    return barriers.monitored_barrier(pg, timeout, wait_all_ranks)


def breakpoint(rank: int = 0, skip: int = 0, timeout_s=3600):
    """See torch.distributed.breakpoint.

    The other ranks raise DistBackendError if the rank does not continue within timeout_s seconds.
    """
    if next(_calls) < skip:
        return
    if get_rank() == rank:
        frame: FrameType | None = sys._getframe().f_back
        pdb.Pdb().set_trace(frame)
    barrier(timeout=timedelta(seconds=timeout_s))


_calls = itertools.count()
