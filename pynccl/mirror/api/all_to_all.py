"""All-to-all: every rank sends each rank its own part.

Equal parts of one tensor are one NCCL operation; lists and unequal parts are one group of sends and
receives directly on the user's tensors.
"""

from __future__ import annotations

import torch

from pynccl.mirror.base.checks import check_tensor, check_tensor_list
from pynccl.mirror.group import operations
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import member

__all__ = ["all_to_all", "all_to_all_single"]


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th tensor of a list to rank i: torch.distributed.all_to_all.

    It is one NCCL group of ncclSend and ncclRecv.

    Args:
        output_tensor_list: the outputs, a tensor for each rank, of any shape with as many elements
            as that rank sends here.
        input_tensor_list: a tensor for each rank, of any size; all of one dtype.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a list of tensors.
        ValueError: the dtypes, lengths or sizes do not fit, a tensor is not contiguous or its dtype
            is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    pg = member(group, "all_to_all")
    if pg is None:
        return None
    check_tensor_list(output_tensor_list, "output_tensor_list")
    check_tensor_list(input_tensor_list, "input_tensor_list")
    return operations.all_to_all(pg, output_tensor_list, input_tensor_list, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send each rank its part of a tensor: torch.distributed.all_to_all_single.

    Equal parts are one ncclAlltoAll, others one NCCL group of ncclSend and ncclRecv.

    Args:
        output: the received parts, in the order of ranks.
        input: the parts to send, in the order of ranks; of the output's dtype.
        output_split_sizes: how many rows (elements of dimension 0) come from each rank; None is
            equal parts.
        input_split_sizes: how many rows go to each rank; None is equal parts.
        group: the group; None is the default group.
        async_op: whether to return a Work instead of waiting.

    Returns:
        The Work of an asynchronous call; else, and where this rank is not in the group, None.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: the dtypes or the split sizes do not fit, a tensor is not contiguous or its
            dtype is not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    pg = member(group, "all_to_all_single")
    if pg is None:
        return None
    check_tensor(output, "output")
    check_tensor(input, "input")
    return operations.all_to_all_single(
        pg, output, input, output_split_sizes, input_split_sizes, async_op
    )
