"""The collectives on one tensor per rank.

Each works on contiguous tensors of any shape, of a dtype that NCCL has (docs/mirror.md lists them),
on the devices of the group's backends. A synchronous call is enqueued on the current stream and
returns; on CPUs it returns when it is done. An asynchronous call runs on the group's communication
stream.
"""

from __future__ import annotations

import torch
from typing_extensions import deprecated

from pynccl import _C
from pynccl.mirror.base.checks import check_tensor
from pynccl.mirror.base.operators import Operator, ReduceOp
from pynccl.mirror.group import operations
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import (
    _rank_not_in_group,
    group_or_default,
    group_rank_of,
    member,
    warn_outside,
)

__all__ = [
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "broadcast",
    "reduce",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
]


@_C.fast
def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy one rank's tensor to every rank: torch.distributed.broadcast, ncclBroadcast.

    Args:
        tensor: the data on the source, the output on the others; of the same number of elements and
            the same dtype on every rank.
        src: the global rank of the source.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.
        group_src: the rank of the source in the group, instead of src.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: tensor is not a tensor.
        ValueError: both or neither of src and group_src are given, the rank is not in the group,
            the tensor is not contiguous or its dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, src, group_src)
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(pg):
        warn_outside("broadcast")
        return None
    return operations.broadcast(pg, tensor, root, async_op)


@_C.fast
def all_reduce(
    tensor: torch.Tensor,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the tensors of all ranks in place: torch.distributed.all_reduce, ncclAllReduce.

    Args:
        tensor: this rank's contribution and the result; of the same number of elements and the same
            dtype on every rank. Complex tensors are reduced as pairs of reals.
        op: SUM, AVG, PRODUCT, MIN or MAX, as a ReduceOp, a :class:`pynccl.nccl.RedOp` or a str
            (``"sum"``, ``"avg"``, ``"prod"``, ``"min"``, ``"max"``); or the operator of a factor.
            On booleans SUM is "or".
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: tensor is not a tensor, op is not an operator, or op is AVG on booleans.
        ValueError: NCCL has no such operator or not for complex tensors, the tensor is not
            contiguous or its dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    check_tensor(tensor, "tensor")
    pg = member(group, "all_reduce")
    if pg is None:
        return None
    return operations.all_reduce(pg, tensor, op, async_op)


@_C.fast
def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combine the tensors of all ranks on one rank: torch.distributed.reduce, ncclReduce.

    Args:
        tensor: this rank's contribution; on the destination also the result. Of the same number of
            elements and the same dtype on every rank.
        dst: the global rank of the destination.
        op: the operator, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.
        group_dst: the rank of the destination in the group, instead of dst.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: tensor is not a tensor, op is not an operator, or op is AVG on booleans.
        ValueError: both or neither of dst and group_dst are given, the rank is not in the group,
            NCCL has no such operator, the tensor is not contiguous or its dtype is not NCCL's, or
            there is no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, dst, group_dst)
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(pg):
        warn_outside("reduce")
        return None
    return operations.reduce(pg, tensor, root, op, async_op)


@_C.fast
def all_gather_single(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Collect the tensors of all ranks in one: torch.distributed.all_gather_single, ncclAllGather.

    torch.distributed has the name since torch 2.13.

    Args:
        output_tensor: as many elements as all inputs together, in the order of ranks: of shape
            (ranks * n, ...) or (ranks, n, ...) for inputs of shape (n, ...).
        input_tensor: this rank's contribution; of the same number of elements on every rank, and of
            the output's dtype.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a tensor, or the dtypes differ.
        ValueError: the sizes do not fit, a tensor is not contiguous or its dtype is not NCCL's, or
            there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    check_tensor(input_tensor, "input_tensor")
    check_tensor(output_tensor, "output_tensor")
    pg = member(group, "all_gather_single")
    if pg is None:
        return None
    return operations.all_gather_single(pg, output_tensor, input_tensor, async_op)


@deprecated(
    "`torch.distributed.all_gather_into_tensor` is deprecated. "
    "Please use `torch.distributed.all_gather_single` instead.",
    category=FutureWarning,
)
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """The older name of :func:`all_gather_single`: torch.distributed.all_gather_into_tensor.

    Args:
        output_tensor: as for :func:`all_gather_single`.
        input_tensor: as for :func:`all_gather_single`.
        group: as for :func:`all_gather_single`.
        async_op: as for :func:`all_gather_single`.

    Returns:
        As :func:`all_gather_single`.

    Raises:
        Exception: as :func:`all_gather_single`.
    """
    return all_gather_single(output_tensor, input_tensor, group, async_op)


@deprecated(
    "`torch.distributed._all_gather_base` is a private function and will be deprecated. "
    "Please use `torch.distributed.all_gather_single` instead.",
    category=FutureWarning,
)
def _all_gather_base(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """The oldest name of :func:`all_gather_single`.

    Args:
        output_tensor: the result, with room for the tensors of all ranks.
        input_tensor: this rank's tensor.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        What :func:`all_gather_single` returns.
    """
    return all_gather_single(output_tensor, input_tensor, group, async_op)


@_C.fast
def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the tensors of all ranks; each rank gets its block of the result.

    It stands for torch.distributed.reduce_scatter_single and ncclReduceScatter. torch.distributed
    has the name since torch 2.13.

    Args:
        output: one block.
        input: a block for each rank, in the order of ranks: of shape (ranks * n, ...) or
            (ranks, n, ...) for an output of shape (n, ...). Of the output's dtype, and of the same
            number of elements on every rank.
        op: the operator, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a tensor, the dtypes differ, op is not an operator, or op is
            AVG on booleans.
        ValueError: the sizes do not fit, NCCL has no such operator, a tensor is not contiguous or
            its dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    check_tensor(output, "output")
    check_tensor(input, "input")
    pg = member(group, "reduce_scatter_single")
    if pg is None:
        return None
    return operations.reduce_scatter_single(pg, output, input, op, async_op)


@deprecated(
    "`torch.distributed.reduce_scatter_tensor` is deprecated. "
    "Please use `torch.distributed.reduce_scatter_single` instead.",
    category=FutureWarning,
)
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """The older name of :func:`reduce_scatter_single`: torch.distributed.reduce_scatter_tensor.

    Args:
        output: as for :func:`reduce_scatter_single`.
        input: as for :func:`reduce_scatter_single`.
        op: as for :func:`reduce_scatter_single`.
        group: as for :func:`reduce_scatter_single`.
        async_op: as for :func:`reduce_scatter_single`.

    Returns:
        As :func:`reduce_scatter_single`.

    Raises:
        Exception: as :func:`reduce_scatter_single`.
    """
    return reduce_scatter_single(output, input, op, group, async_op)


@deprecated(
    "`torch.distributed._reduce_scatter_base` is a private function and will be deprecated. "
    "Please use `torch.distributed.reduce_scatter_single` instead.",
    category=FutureWarning,
)
def _reduce_scatter_base(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """The oldest name of :func:`reduce_scatter_single`.

    Args:
        output: the result, this rank's block.
        input: the blocks for all ranks, in one tensor.
        op: a ReduceOp, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        What :func:`reduce_scatter_single` returns.
    """
    return reduce_scatter_single(output, input, op, group, async_op)
