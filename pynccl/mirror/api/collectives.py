"""Collectives on one tensor per rank.

They accept contiguous tensors of any shape and of any dtype that NCCL supports (listed in
docs/mirror.md), on the devices of the group's backends. all_reduce, broadcast and reduce also
accept channels-last tensors, if those of all ranks are. A synchronous call enqueues the operation
on the current stream and returns; on CPUs it returns when the operation is complete. An
asynchronous call runs on the group's communication stream.
"""

from __future__ import annotations

import torch
from typing_extensions import deprecated

from pynccl import _C, nccl
from pynccl.mirror.base.checks import check_blocks, check_tensor, in_memory_order, real
from pynccl.mirror.base.operators import Operator, ReduceOp, supports_complex, torch_operator
from pynccl.mirror.group.comm_stream import Call
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import group_or_default, group_rank_of, member

__all__ = [
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
    """See torch.distributed.broadcast (ncclBroadcast)."""
    pg = group_or_default(group)
    root = group_rank_of(pg, src, group_src, "src")
    check_tensor(tensor, "tensor")
    if member(pg, "broadcast") is None:
        return None
    data = in_memory_order(tensor)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.broadcast(data, root, stream=stream)

    return pg.issue(Call("broadcast", data, enqueue, [tensor], {"tensor": data}, async_op))


@_C.fast
def all_reduce(
    tensor: torch.Tensor,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See torch.distributed.all_reduce (ncclAllReduce).

    op is SUM, AVG, PRODUCT, MIN or MAX as a ReduceOp, a :class:`pynccl.nccl.RedOp` or a str
    (``"sum"``, ``"avg"``, ``"prod"``, ``"min"``, ``"max"``), or a pre-multiplied sum. On booleans,
    SUM is a logical or, and AVG raises TypeError. Complex tensors are reduced as pairs of reals.
    """
    check_tensor(tensor, "tensor")
    pg = member(group, "all_reduce")
    if pg is None:
        return None
    if tensor.is_complex() and not supports_complex(torch_operator(op)):
        raise ValueError(f"op: all_reduce does not support {op} on complex tensors")
    red_op = pg.red_op(op, tensor)
    data = in_memory_order(tensor)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.all_reduce(data, red_op, stream=stream)

    return pg.issue(Call("all_reduce", data, enqueue, [tensor], {"tensor": data}, async_op))


@_C.fast
def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """See torch.distributed.reduce (ncclReduce). op is as for :func:`all_reduce`."""
    pg = group_or_default(group)
    root = group_rank_of(pg, dst, group_dst, "dst")
    check_tensor(tensor, "tensor")
    if member(pg, "reduce") is None:
        return None
    red_op = pg.red_op(op, tensor)
    data = in_memory_order(tensor)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.reduce(data, root, red_op, stream=stream)

    return pg.issue(Call("reduce", data, enqueue, [tensor], {"tensor": data}, async_op))


def _check_dtypes(output: torch.Tensor, input: torch.Tensor, name: str, input_name: str) -> None:
    if output.dtype != input.dtype:
        raise TypeError(
            f"{name}: output tensor must have the same type as input tensor: {output.dtype} is not "
            f"{input.dtype}, the dtype of {input_name}"
        )


@_C.fast
def all_gather_single(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See torch.distributed.all_gather_single (ncclAllGather), available since torch 2.13.

    For inputs of shape (n, ...), the output has shape (ranks * n, ...) or (ranks, n, ...).
    """
    check_tensor(input_tensor, "input_tensor")
    check_tensor(output_tensor, "output_tensor")
    pg = member(group, "all_gather_single")
    if pg is None:
        return None
    out, own = real(output_tensor), real(input_tensor)
    _check_dtypes(out, own, "output_tensor", "input_tensor")
    check_blocks(out, own, pg.size(), "output_tensor", "input_tensor")

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.all_gather(own, out=out, stream=stream)

    arguments = {"output_tensor": out, "input_tensor": own}
    return pg.issue(Call("all_gather_single", own, enqueue, [output_tensor], arguments, async_op))


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
    """See torch.distributed.all_gather_into_tensor. Older name of all_gather_single."""
    return all_gather_single(output_tensor, input_tensor, group, async_op)


@_C.fast
def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See torch.distributed.reduce_scatter_single (ncclReduceScatter), available since torch 2.13.

    For an output of shape (n, ...), the input has shape (ranks * n, ...) or (ranks, n, ...). op is
    as for :func:`all_reduce`.
    """
    check_tensor(output, "output")
    check_tensor(input, "input")
    pg = member(group, "reduce_scatter_single")
    if pg is None:
        return None
    _check_dtypes(output, input, "output", "input")
    check_blocks(input, output, pg.size(), "input", "output")
    red_op = pg.red_op(op, input)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.reduce_scatter(input, red_op, out=output, stream=stream)

    arguments = {"output": output, "input": input}
    return pg.issue(Call("reduce_scatter_single", input, enqueue, [output], arguments, async_op))


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
    """See torch.distributed.reduce_scatter_tensor. Older name of reduce_scatter_single."""
    return reduce_scatter_single(output, input, op, group, async_op)
