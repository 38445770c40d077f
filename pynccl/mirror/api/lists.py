"""Collectives on lists of tensors.

Each is issued as one NCCL group of operations directly on the user's tensors: nothing is copied to
or from a flat buffer, and unless noted otherwise the parts may differ in size. Tensors must be
contiguous, of one dtype that NCCL supports, and on one device of the group's backends.
"""

from __future__ import annotations

import torch
from typing_extensions import deprecated

from pynccl.mirror.base.checks import (
    check_same_dtype,
    check_tensor,
    check_tensor_list,
)
from pynccl.mirror.base.operators import Operator, ReduceOp
from pynccl.mirror.group import operations
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import (
    _rank_not_in_group,
    group_or_default,
    member,
    root_of,
    warn_outside,
)

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "reduce_scatter",
    "scatter",
]


def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See torch.distributed.all_gather.

    Issued as one NCCL group of ncclBroadcast, one from each rank, so the sizes may differ.
    """
    check_tensor_list(tensor_list, "tensor_list")
    check_tensor(tensor, "tensor")
    check_same_dtype([*tensor_list, tensor])
    pg = member(group, "all_gather")
    if pg is None:
        return None
    return operations.all_gather(pg, tensor_list, tensor, async_op)


@deprecated(
    "`torch.distributed.all_gather_coalesced` will be deprecated. If you must use it, "
    "please revisit our documentation later at "
    "https://pytorch.org/docs/main/distributed.html#collective-functions",
    category=FutureWarning,
)
def all_gather_coalesced(
    output_tensor_lists: list[list[torch.Tensor]],
    input_tensor_list: list[torch.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> torch.Future | None:
    """See torch.distributed.all_gather_coalesced.

    Issued as one NCCL group of ncclBroadcast. The future's value is the list of outputs.
    """
    pg = member(group, "all_gather_coalesced")
    if pg is None:
        return None
    check_tensor_list(input_tensor_list, "input_tensor_list")
    check_same_dtype(input_tensor_list)
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    for output_tensor_list in output_tensor_lists:
        check_tensor_list(output_tensor_list, "output_tensor_lists")
        check_same_dtype(output_tensor_list)
    work = operations.all_gather_coalesced(pg, output_tensor_lists, input_tensor_list, async_op)
    return work.get_future() if work is not None else None


@deprecated(
    "`torch.distributed.all_reduce_coalesced` will be deprecated. If you must "
    "use it, please revisit our documentation later at "
    "https://pytorch.org/docs/main/distributed.html#collective-functions",
    category=FutureWarning,
)
def all_reduce_coalesced(
    tensors: list[torch.Tensor],
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> torch.Future | None:
    """See torch.distributed.all_reduce_coalesced.

    Issued as one NCCL group of ncclAllReduce. tensors may be a single tensor. op is as for
    :func:`all_reduce`. The future's value is the list of tensors.
    """
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    check_tensor_list(tensors, "tensor")
    check_same_dtype(tensors)
    pg = member(group, "all_reduce_coalesced")
    if pg is None:
        return None
    work = operations.all_reduce_coalesced(pg, tensors, op, async_op)
    return work.get_future() if work is not None else None


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """See torch.distributed.gather. Issued as one NCCL group of ncclSend and ncclRecv."""
    check_tensor(tensor, "tensor")
    outputs: list[torch.Tensor] = []
    if gather_list:
        check_tensor_list(gather_list, "gather_list")
        outputs = gather_list
    check_same_dtype([tensor, *outputs])
    pg = group_or_default(group)
    if _rank_not_in_group(pg):
        warn_outside("gather")
        return None
    root = root_of(pg, dst, group_dst)
    return operations.gather(pg, tensor, outputs, root, async_op)


def gather_single(
    tensor: torch.Tensor,
    gather_tensor: torch.Tensor | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
):
    """See torch.distributed.gather_single, available since torch 2.14.

    Issued as one NCCL group of ncclSend and ncclRecv. For inputs of shape (n, ...), gather_tensor
    has shape (ranks * n, ...) or (ranks, n, ...). It is ignored on all ranks but the destination.
    """
    check_tensor(tensor, "tensor")
    pg = group_or_default(group)
    if _rank_not_in_group(pg):
        warn_outside("gather_single")
        return None
    root = root_of(pg, dst, group_dst)
    if root != pg.rank():
        return operations.gather_single(pg, tensor, None, root, async_op)
    if gather_tensor is None:
        raise ValueError("gather_tensor must be specified on the destination rank")
    check_tensor(gather_tensor, "gather_tensor")
    check_same_dtype([tensor, gather_tensor])
    return operations.gather_single(pg, tensor, gather_tensor, root, async_op)


def gather_into_tensor(
    tensor: torch.Tensor,
    gather_tensor: torch.Tensor | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
):
    """See torch.distributed.gather_into_tensor, available since torch 2.14.

    Older name of :func:`gather_single`.
    """
    return gather_single(tensor, gather_tensor, dst, group, async_op, group_dst)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """See torch.distributed.scatter. Issued as one NCCL group of ncclSend and ncclRecv."""
    check_tensor(tensor, "tensor")
    inputs: list[torch.Tensor] = []
    if scatter_list:
        check_tensor_list(scatter_list, "scatter_list")
        inputs = scatter_list
    check_same_dtype([tensor, *inputs])
    pg = group_or_default(group)
    root = root_of(pg, src, group_src)
    if _rank_not_in_group(pg):
        warn_outside("scatter")
        return None
    return operations.scatter(pg, tensor, inputs, root, async_op)


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See torch.distributed.reduce_scatter.

    Issued as one NCCL group of ncclReduce, one to each rank. op is as for :func:`all_reduce`.
    """
    check_tensor(output, "output")
    check_tensor_list(input_list, "input_list")
    check_same_dtype([output, *input_list])
    pg = member(group, "reduce_scatter")
    if pg is None:
        return None
    return operations.reduce_scatter(pg, output, input_list, op, async_op)
