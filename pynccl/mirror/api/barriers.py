"""Barriers: an all_reduce, or through the store, which identifies the missing ranks."""

from __future__ import annotations

import itertools
import pdb
import sys
import warnings
from datetime import timedelta
from types import FrameType

import torch

from pynccl import nccl
from pynccl.mirror.group.comm_stream import Call
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import GroupMember, get_rank, member

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
    pg = member(group or None, "barrier")
    if pg is None:
        return None
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"timeout: expected a datetime.timedelta, got {timeout!r}")
    tensor = torch.zeros(1, dtype=torch.uint8, device=_device(pg, device_ids))
    if not async_op and not tensor.is_cuda:
        _wait_for_gpu(pg)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.all_reduce(tensor, stream=stream)

    work = pg.issue(Call("barrier", tensor, enqueue, [], {}, async_op or timeout is not None))
    if async_op:
        return work
    if work is not None:
        work.wait(timeout or timedelta(0))
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
        # synchronize() also returns if a time limit has ended the operation.
        comm_stream = pg.comm_streams().get("cuda")
        if comm_stream is not None and (error := comm_stream.error("barrier")) is not None:
            raise error
    return None


def _device(pg: ProcessGroup, device_ids: list[int] | None) -> torch.device:
    if isinstance(device_ids, list) and device_ids and "cuda" in pg.config.device_backend_map:
        return torch.device("cuda", device_ids[0])
    return pg.bound_device_id or torch.device(pg.object_device)


def _wait_for_gpu(pg: ProcessGroup) -> None:
    """Wait for the current stream, as a barrier on the GPU would."""
    if "cuda" in pg.config.device_backend_map and torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()


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
    pg = member(group, "monitored_barrier")
    if pg is None:
        return
    if isinstance(timeout, float):
        warnings.warn(
            "Please specify timeout arg as a timedelta. "
            f"Converting current value of {timeout} assuming it represents seconds",
            stacklevel=2,
        )
        timeout = timedelta(seconds=timeout)
    pg.monitored_barrier(timeout, wait_all_ranks)


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
