"""All-to-all: every rank sends a part to each rank.

Equal parts of one tensor are one NCCL operation. Lists and unequal parts are one group of sends and
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
    """See torch.distributed.all_to_all.

    Issued as one NCCL group of ncclSend and ncclRecv. The tensors may differ in size, but not in
    dtype.
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
    """See torch.distributed.all_to_all_single.

    Equal parts are issued as one ncclAlltoAll, unequal parts as one NCCL group of ncclSend and
    ncclRecv.
    """
    pg = member(group, "all_to_all_single")
    if pg is None:
        return None
    check_tensor(output, "output")
    check_tensor(input, "input")
    return operations.all_to_all_single(
        pg, output, input, output_split_sizes, input_split_sizes, async_op
    )
