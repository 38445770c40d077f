"""The collectives on lists of tensors.

Each is one NCCL group of operations directly on the user's tensors: nothing is copied to or from a
flat buffer, and unless noted otherwise the parts may have different sizes. Tensors are
contiguous, of one dtype that NCCL has, on one device of the group's backends.
"""

from __future__ import annotations

import torch
from typing_extensions import deprecated

from pynccl.mirror.base.checks import (
    check_length,
    check_same_dtype,
    check_tensor,
    check_tensor_list,
    reals,
)
from pynccl.mirror.base.errors import MismatchError
from pynccl.mirror.base.operators import ReduceOp
from pynccl.mirror.group import operations
from pynccl.mirror.group.process_group import ProcessGroup
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
    "reduce_scatter",
    "scatter",
]


def all_gather(tensor_list, tensor, group=None, async_op=False):
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
    output_tensor_lists,
    input_tensor_list,
    group=None,
    async_op: bool = False,
):
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
    check_length(output_tensor_lists, pg.size(), "output_tensor_lists")
    for rank, output_tensor_list in enumerate(output_tensor_lists):
        if len(output_tensor_list) != len(input_tensor_list):
            raise MismatchError(
                f"output_tensor_lists: the list of rank {rank} has {len(output_tensor_list)} "
                f"tensors, must have one for each of the {len(input_tensor_list)} inputs"
            )
    outputs = [reals(of_input) for of_input in zip(*output_tensor_lists, strict=True)]
    inputs = reals(input_tensor_list)
    work = operations.gather_everywhere(pg, "all_gather_coalesced", outputs, inputs, async_op)
    return work.get_future() if work is not None else None


@deprecated(
    "`torch.distributed.all_reduce_coalesced` will be deprecated. If you must "
    "use it, please revisit our documentation later at "
    "https://pytorch.org/docs/main/distributed.html#collective-functions",
    category=FutureWarning,
)
def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op: bool = False):
    """Combine several tensors of all ranks at once: torch.distributed.all_reduce_coalesced.

    It is one NCCL group of ncclAllReduce.

    Args:
        tensors: this rank's contributions and the results; a list of tensors of one dtype and any
            shape, with the same sizes on every rank, or one tensor.
        op: a ReduceOp, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a future instead of waiting.

    Returns:
        The future of an asynchronous call, whose value is the list of the tensors; else, and where
        this rank is not in the group, None.

    Raises:
        TypeError: tensors is not a list of tensors, op is not a ReduceOp, or op is AVG on booleans.
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
):
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
        return warn_outside("gather")
    root = root_of(pg, dst, group_dst)
    return operations.gather(pg, tensor, outputs, root, async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
):
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
        return warn_outside("scatter")
    return operations.scatter(pg, tensor, inputs, root, async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op: bool = False):
    """Combine lists of tensors of all ranks; rank i gets the combination of the i-th.

    It stands for torch.distributed.reduce_scatter, and is one NCCL group of ncclReduce, one to each
    rank.

    Args:
        output: this rank's output.
        input_list: a tensor for each rank, of as many elements as that rank's output and of its
            dtype.
        op: a ReduceOp, as for :func:`all_reduce`.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: output is not a tensor, input_list not a list of tensors, op is not a ReduceOp,
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
