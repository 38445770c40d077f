"""The collectives on lists of tensors.

Each is one NCCL group of operations directly on the user's tensors: nothing is copied to or from a
flat buffer, and unless noted otherwise the parts may have different sizes. Tensors are
contiguous, of one dtype that NCCL has, on one device of the group's backends.
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
    """Collect the tensors of all ranks in a list, on every rank: torch.distributed.all_gather.

    It is one NCCL group of ncclBroadcast, one from each rank.

    Args:
        tensor_list: the outputs, a tensor for each rank, of any shape with as many elements as that
            rank sends.
        tensor: this rank's contribution, of the dtype of the outputs; its size may differ from that
            of other ranks.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a tensor, or not a list of tensors.
        ValueError: the dtypes, the length of the list or the sizes do not fit, a tensor is not
            contiguous or its dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
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
    """Collect several tensors of all ranks at once: torch.distributed.all_gather_coalesced.

    It is one NCCL group of ncclBroadcast, one for each rank and tensor.

    Args:
        output_tensor_lists: a list for each rank, with a tensor for each of its inputs, of as many
            elements.
        input_tensor_list: this rank's contributions, of one dtype.
        group: the group; None is the default group.
        async_op: whether to return a future instead of waiting.

    Returns:
        The future of an asynchronous call, whose value is the list of the outputs; else, and where
        this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a list of tensors, or not a list of such lists.
        ValueError: the dtypes, lengths or sizes do not fit, a tensor is not contiguous or its dtype
            is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
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
    """Combine several tensors of all ranks at once: torch.distributed.all_reduce_coalesced.

    It is one NCCL group of ncclAllReduce.

    Args:
        tensors: this rank's contributions and the results; a list of tensors of one dtype and any
            shape, with the same sizes on every rank, or one tensor.
        op: the operator, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a future instead of waiting.

    Returns:
        The future of an asynchronous call, whose value is the list of the tensors; else, and where
        this rank is not in the group, None.

    Raises:
        TypeError: tensors is not a list of tensors, op is not an operator, or is AVG on booleans.
        ValueError: the dtypes differ, NCCL has no such operator, a tensor is not contiguous or its
            dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
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
    """Collect the tensors of all ranks in a list, on one rank: torch.distributed.gather.

    It is one NCCL group of ncclSend and ncclRecv.

    Args:
        tensor: this rank's contribution; of the same number of elements and dtype on every rank.
        gather_list: on the destination the outputs, a tensor for each rank, of as many elements;
            None on the others.
        dst: the global rank of the destination; 0 without it and group_dst.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.
        group_dst: the rank of the destination in the group, instead of dst.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: tensor is not a tensor, or gather_list not a list of tensors.
        ValueError: gather_list is missing on the destination or given elsewhere, the dtypes, its
            length or the sizes do not fit, both dst and group_dst are given, the rank is not in the
            group, a tensor is not contiguous or its dtype is not NCCL's, or there is no default
            group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
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
    """Collect the tensors of all ranks in one tensor, on one rank: torch.distributed.gather_single.

    It is one NCCL group of ncclSend and ncclRecv. torch.distributed has it since torch 2.14.

    Args:
        tensor: this rank's contribution; of the same number of elements and dtype on every rank.
        gather_tensor: on the destination the output, with as many elements as all inputs together,
            in the order of ranks: of shape (ranks * n, ...) or (ranks, n, ...) for inputs of shape
            (n, ...). Ignored on the others.
        dst: the global rank of the destination; 0 without it and group_dst.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.
        group_dst: the rank of the destination in the group, instead of dst.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: gather_tensor is missing on the destination, the dtypes or the sizes do not fit,
            both dst and group_dst are given, the rank is not in the group, a tensor is not
            contiguous or its dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
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
    """Another name of :func:`gather_single`: torch.distributed.gather_into_tensor.

    torch.distributed has it since torch 2.14.

    Args:
        tensor: as for :func:`gather_single`.
        gather_tensor: as for :func:`gather_single`.
        dst: as for :func:`gather_single`.
        group: as for :func:`gather_single`.
        async_op: as for :func:`gather_single`.
        group_dst: as for :func:`gather_single`.

    Returns:
        As :func:`gather_single`.

    Raises:
        Exception: as :func:`gather_single`.
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
    """Send each rank its tensor of one rank's list: torch.distributed.scatter.

    It is one NCCL group of ncclSend and ncclRecv.

    Args:
        tensor: this rank's output; of the same number of elements and dtype on every rank.
        scatter_list: on the source a tensor for each rank, of as many elements; None on the others.
        src: the global rank of the source; 0 without it and group_src.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.
        group_src: the rank of the source in the group, instead of src.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: tensor is not a tensor, or scatter_list not a list of tensors.
        ValueError: scatter_list is missing on the source or given elsewhere, the dtypes, its length
            or the sizes do not fit, both src and group_src are given, the rank is not in the group,
            a tensor is not contiguous or its dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
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
    """Combine lists of tensors of all ranks; rank i gets the combination of the i-th.

    It stands for torch.distributed.reduce_scatter, and is one NCCL group of ncclReduce, one to each
    rank.

    Args:
        output: this rank's output.
        input_list: a tensor for each rank, of as many elements as that rank's output and of its
            dtype.
        op: the operator, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: output is not a tensor, input_list not a list of tensors, op is not an operator,
            or op is AVG on booleans.
        ValueError: the dtypes, the length of the list or the sizes do not fit, NCCL has no such
            operator, a tensor is not contiguous or its dtype is not NCCL's, or there is no default
            group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    check_tensor(output, "output")
    check_tensor_list(input_list, "input_list")
    check_same_dtype([output, *input_list])
    pg = member(group, "reduce_scatter")
    if pg is None:
        return None
    return operations.reduce_scatter(pg, output, input_list, op, async_op)
