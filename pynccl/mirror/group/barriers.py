"""Barriers of a group, by an all_reduce or through the store."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl.mirror.base.backend import timeout_of
from pynccl.mirror.base.errors import BackendTimeoutError
from pynccl.mirror.group.base_group import BaseGroup
from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import Work
from pynccl.nccl import RedOp

__all__ = ["barrier", "monitored_barrier"]

_TIMEOUT = 8  # ncclTimeout


def barrier(
    group: BaseGroup,
    device_ids: list[int] | None = None,
    async_op: bool = False,
    timeout: timedelta | None = None,
) -> Work | None:
    """All-reduce one element. A synchronous call blocks the caller.

    Args:
        group: the group.
        device_ids: a list with the GPU to use.
        async_op: whether to return the Work instead of blocking.
        timeout: the timeout of a synchronous call; None is the group's timeout.
    """
    tensor = torch.zeros(1, dtype=torch.uint8, device=_device(group, device_ids))
    if not async_op and not tensor.is_cuda:
        _wait_for_gpu(group)
    calls = [Call("all_reduce", tensor, op=RedOp.SUM)]
    work = group.issue(
        OperationRecord("barrier", tensor, calls, [tensor], async_op or timeout is not None)
    )
    if async_op:
        return work
    if work is not None:
        work.wait(timeout or timedelta(0))
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
        # synchronize() also returns if a time limit has ended the operation.
        comm_stream = group.comm_streams().get("cuda")
        if comm_stream is not None and (error := comm_stream.error("barrier")) is not None:
            raise error
    return None


def _device(group: BaseGroup, device_ids: list[int] | None) -> torch.device:
    if isinstance(device_ids, list) and device_ids:
        return torch.device("cuda", device_ids[0])
    if group.bound_device_id is not None:
        return group.bound_device_id
    return torch.device(group.object_device)


def _wait_for_gpu(group: BaseGroup) -> None:
    """Wait for the current stream: a barrier on the GPU does so, one on CPUs does not."""
    if "cuda" in group.config.device_backend_map and torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()


def monitored_barrier(
    group: BaseGroup, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks through the store; rank 0 of the group reports the missing ranks.

    Args:
        group: the group.
        timeout: how long to wait; None is the default of the group's backend.
        wait_all_ranks: whether rank 0 reports all missing ranks, or only the first.

    Raises:
        BackendTimeoutError: on rank 0, with the missing ranks; on the others, if rank 0 does not
            confirm.
    """
    limit = timeout_of(timeout, group.config)
    store = PrefixStore(f"monitored barrier/{group.barriers}", group.store)
    group.barriers += 1
    if group.rank() == 0:
        _collect(group, store, limit, wait_all_ranks)
    else:
        _report(group, store, limit)


def _timed_out(text: str, rank: int) -> BackendTimeoutError:
    return BackendTimeoutError(f"[Rank {rank}]: {text}", _TIMEOUT, "monitored_barrier", rank)


def _collect(group: BaseGroup, store: Store, limit: timedelta, wait_all_ranks: bool) -> None:
    if limit <= timedelta(0):
        raise _timed_out("Rank 0 timed out in monitoredBarrier after 0 ms", 0)
    others = [str(rank) for rank in range(1, group.size())]
    missing: list[str] = []
    try:
        if others:
            store.wait(others, max(limit, timedelta(milliseconds=1)))
    except RuntimeError:
        missing = [rank for rank in others if not store.check([rank])]
    if missing:
        milliseconds = int(limit.total_seconds() * 1000)
        names = ", ".join(missing if wait_all_ranks else missing[:1])
        ranks = "Ranks" if wait_all_ranks else "Rank"
        raise _timed_out(f"{ranks} {names} failed to pass monitoredBarrier in {milliseconds} ms", 0)
    store.set("go", "1")


def _report(group: BaseGroup, store: Store, limit: timedelta) -> None:
    rank = group.rank()
    store.set(str(rank), "1")
    try:
        store.wait(["go"], max(limit, timedelta(milliseconds=1)))
    except RuntimeError as error:
        raise _timed_out(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
            "for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
            rank,
        ) from error
