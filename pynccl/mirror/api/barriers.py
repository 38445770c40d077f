"""Barriers: by an all_reduce, or by the store, which names the ranks that are missing."""

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
    """Wait until every rank has called this: torch.distributed.barrier.

    It is an ncclAllReduce of one byte, and blocks the caller, on GPUs too.

    Args:
        group: the group; None is the default group.
        async_op: whether to return a Work instead of blocking.
        device_ids: the index of the GPU to use, in a list.
        timeout: how long to wait; None is the group's own. torch.distributed has it since torch
            2.12.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: timeout is not a timedelta.
        ValueError: there is no default group.
        DistBackendError: NCCL failed, or not every rank called it before the timeout.
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
    """Wait until every rank has called this, by the store: torch.distributed.monitored_barrier.

    Args:
        group: the group; None is the default group.
        timeout: how long to wait, as a timedelta; None is the default of the group's backend. A
            float is seconds, with a warning.
        wait_all_ranks: whether rank 0 names all missing ranks, or the first it finds.

    Returns:
        None.

    Raises:
        DistBackendError: on rank 0, with the missing ranks; on the others, when rank 0 did not
            confirm.
        TypeError: timeout is not a timedelta.
        ValueError: there is no default group.
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
    """Stop one rank in the debugger while the others wait: torch.distributed.breakpoint.

    Args:
        rank: the global rank that stops.
        skip: how many calls to skip first.
        timeout_s: how long the others wait, in seconds.

    Raises:
        ValueError: there is no default group.
        DistBackendError: the rank did not continue in time.
    """
    if next(_calls) < skip:
        return
    if get_rank() == rank:
        frame: FrameType | None = sys._getframe().f_back
        pdb.Pdb().set_trace(frame)
    barrier(timeout=timedelta(seconds=timeout_s))


_calls = itertools.count()
