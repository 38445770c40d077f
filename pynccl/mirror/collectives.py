"""The collectives on one tensor per rank."""

from __future__ import annotations

import torch
from typing_extensions import deprecated

from pynccl import _C
from pynccl.mirror.checks import check_tensor, real
from pynccl.mirror.operators import ReduceOp, resolve, supports_complex
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
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
):
    """Copy one rank's tensor to every rank (ncclBroadcast).

    Args:
        tensor: the data on the source; on the others where to put it.
        src: the source's global rank.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
        group_src: the source's rank in the group, instead of src.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, src, group_src)
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(pg):
        return warn_outside("broadcast")
    return pg.run(
        "broadcast",
        tensor,
        lambda comm, stream: comm.broadcast(tensor, root, stream=stream),
        [tensor],
        async_op,
    )


@_C.fast
def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op: bool = False):
    """Combine the tensors of all ranks element by element, in place, on every rank (ncclAllReduce).

    Args:
        tensor: this rank's contribution, and the result.
        op: a ReduceOp.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
    """
    check_tensor(tensor, "tensor")
    pg = member(group, "all_reduce")
    if pg is None:
        return None
    if tensor.is_complex() and not supports_complex(op):
        raise ValueError(f"all_reduce does not support {op} on complex tensors")
    red_op = resolve(op, tensor, pg.channel(tensor.device))
    return pg.run(
        "all_reduce",
        tensor,
        lambda comm, stream: comm.all_reduce(tensor, red_op, stream=stream),
        [tensor],
        async_op,
    )


@_C.fast
def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op=ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
):
    """Combine the tensors of all ranks element by element; one rank gets the result (ncclReduce).

    Args:
        tensor: this rank's contribution; on the destination also the result.
        dst: the destination's global rank.
        op: a ReduceOp.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
        group_dst: the destination's rank in the group, instead of dst.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, dst, group_dst)
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(pg):
        return warn_outside("reduce")
    red_op = resolve(op, tensor, pg.channel(tensor.device))
    return pg.run(
        "reduce",
        tensor,
        lambda comm, stream: comm.reduce(tensor, root, red_op, stream=stream),
        [tensor],
        async_op,
    )


def _check_dtypes(output: torch.Tensor, input_: torch.Tensor) -> None:
    if output.dtype != input_.dtype:
        raise TypeError(
            f"output tensor must have the same type as input tensor: {output.dtype} is not "
            f"{input_.dtype}"
        )


@_C.fast
def all_gather_single(output_tensor, input_tensor, group=None, async_op=False):
    """Collect the tensors of all ranks in one tensor, on every rank (ncclAllGather).

    Args:
        output_tensor: as many elements as all inputs together, in the order of ranks.
        input_tensor: this rank's contribution, of the same size on every rank.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
    """
    check_tensor(input_tensor, "input_tensor")
    check_tensor(output_tensor, "output_tensor")
    pg = member(group, "all_gather_single")
    if pg is None:
        return None
    out, own = real(output_tensor), real(input_tensor)
    _check_dtypes(out, own)
    return pg.run(
        "all_gather_single",
        own,
        lambda comm, stream: comm.all_gather(own, out=out, stream=stream),
        [output_tensor],
        async_op,
    )


@deprecated(
    "`torch.distributed.all_gather_into_tensor` is deprecated. "
    "Please use `torch.distributed.all_gather_single` instead.",
    category=FutureWarning,
)
def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """The older name of :func:`all_gather_single`."""
    return all_gather_single(output_tensor, input_tensor, group, async_op)


@deprecated(
    "`torch.distributed._all_gather_base` is a private function and will be deprecated. "
    "Please use `torch.distributed.all_gather_single` instead.",
    category=FutureWarning,
)
def _all_gather_base(output_tensor, input_tensor, group=None, async_op: bool = False):
    """The oldest name of :func:`all_gather_single`."""
    return all_gather_single(output_tensor, input_tensor, group, async_op)


@_C.fast
def reduce_scatter_single(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """Combine the tensors of all ranks; each rank gets its block of the result (ncclReduceScatter).

    Args:
        output: one block.
        input: a block for each rank, in their order.
        op: a ReduceOp.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
    """
    check_tensor(output, "output")
    check_tensor(input, "input")
    pg = member(group, "reduce_scatter_single")
    if pg is None:
        return None
    _check_dtypes(output, input)
    red_op = resolve(op, input, pg.channel(input.device))
    return pg.run(
        "reduce_scatter_single",
        input,
        lambda comm, stream: comm.reduce_scatter(input, red_op, out=output, stream=stream),
        [output],
        async_op,
    )


@deprecated(
    "`torch.distributed.reduce_scatter_tensor` is deprecated. "
    "Please use `torch.distributed.reduce_scatter_single` instead.",
    category=FutureWarning,
)
def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):
    """The older name of :func:`reduce_scatter_single`."""
    return reduce_scatter_single(output, input, op, group, async_op)


@deprecated(
    "`torch.distributed._reduce_scatter_base` is a private function and will be deprecated. "
    "Please use `torch.distributed.reduce_scatter_single` instead.",
    category=FutureWarning,
)
def _reduce_scatter_base(output, input, op=ReduceOp.SUM, group=None, async_op: bool = False):
    """The oldest name of :func:`reduce_scatter_single`."""
    return reduce_scatter_single(output, input, op, group, async_op)
