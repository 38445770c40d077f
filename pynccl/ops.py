"""Collectives as operators of torch: for torch.compile, and with gradients.

A function that calls them compiles without a graph break. There are functional forms, which
return a new tensor and have a gradient, and forms with ``_`` at their end, which write into the
tensor or the output that they are given and have none. The operators themselves are
``torch.ops.pynccl.all_reduce`` and so on; they name the group by a string, which is what stays in a
compiled graph.

    @torch.compile(fullgraph=True)
    def step(x, w):
        return ops.all_reduce(x @ w).relu()

Groups are those of pynccl (``pynccl.init_process_group``, ``pynccl.new_group``) or their names.
Calls run on the current stream, or on CPUs in the calling thread, in the order of the graph, which
is the same on all ranks that compile the same function. A call whose result nobody uses may be left
out of a compiled graph, then on every rank.

The gradients are those of torch.distributed.nn: what is differentiated is the sum of all ranks'
losses, so that every rank must run its backward pass. They exist for ``"sum"`` and ``"avg"``. For
another operator torch.distributed.nn gives something that is not the derivative; here it is an
error, as in torch's functional collectives.

The functions of the mirror itself (``pynccl.all_reduce`` ...) can be called in a compiled function
as well; each is a graph break.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pynccl import _ops
from pynccl._ops import Group

__all__ = [
    "all_gather",
    "all_gather_",
    "all_reduce",
    "all_reduce_",
    "all_to_all",
    "all_to_all_",
    "broadcast",
    "broadcast_",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_",
    "scatter",
]


def _refuse_gradients(*tensors: Tensor) -> None:
    """Raise where autograd would take an operation in place for the identity."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            "a tensor requires a gradient, which the form in place does not have; use the "
            "functional form, or torch.no_grad()"
        )


def all_reduce(tensor: Tensor, op: str = "sum", group: Group = None) -> Tensor:
    """Combine the tensors of all ranks element by element, on every rank (ncclAllReduce).

    Args:
        tensor: this rank's contribution.
        op: ``"sum"``, ``"avg"``, ``"product"``, ``"min"`` or ``"max"``.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor of the same shape.
    """
    return _ops.all_reduce(tensor, op, _ops.name_of(group))


def all_reduce_(tensor: Tensor, op: str = "sum", group: Group = None) -> Tensor:
    """Do :func:`all_reduce` in place; gives the tensor back."""
    _refuse_gradients(tensor)
    _ops.all_reduce_(tensor, op, _ops.name_of(group))
    return tensor


def broadcast(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Copy one rank's tensor to every rank (ncclBroadcast).

    Args:
        tensor: the data on the source; on the others a tensor of the same shape.
        src: the source's rank in the group.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor of the same shape.
    """
    return _ops.broadcast(tensor, src, _ops.name_of(group))


def broadcast_(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Do :func:`broadcast` in place; gives the tensor back."""
    _refuse_gradients(tensor)
    _ops.broadcast_(tensor, src, _ops.name_of(group))
    return tensor


def reduce(tensor: Tensor, dst: int = 0, op: str = "sum", group: Group = None) -> Tensor:
    """Combine the tensors of all ranks element by element, on one rank (ncclReduce).

    Args:
        tensor: this rank's contribution.
        dst: the rank in the group that gets the result.
        op: as for :func:`all_reduce`.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor of the same shape: the result, or zeros on the other ranks.
    """
    return _ops.reduce(tensor, dst, op, _ops.name_of(group))


def all_gather(tensor: Tensor, group: Group = None) -> Tensor:
    """Join the tensors of all ranks along the first dimension, on every rank (ncclAllGather).

    Args:
        tensor: this rank's block, of the same shape on every rank.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor, ``(n * tensor.shape[0], *tensor.shape[1:])`` for n ranks.
    """
    return _ops.all_gather(tensor, _ops.name_of(group))


def all_gather_(output: Tensor, tensor: Tensor, group: Group = None) -> Tensor:
    """Do :func:`all_gather` into output, which it gives back."""
    _refuse_gradients(output, tensor)
    _ops.all_gather_(output, tensor, _ops.name_of(group))
    return output


def reduce_scatter(tensor: Tensor, op: str = "sum", group: Group = None) -> Tensor:
    """Combine the tensors of all ranks; each rank gets its block (ncclReduceScatter).

    Args:
        tensor: a block for each rank along the first dimension.
        op: as for :func:`all_reduce`.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor, ``(tensor.shape[0] / n, *tensor.shape[1:])`` for n ranks.
    """
    return _ops.reduce_scatter(tensor, op, _ops.name_of(group))


def reduce_scatter_(output: Tensor, tensor: Tensor, op: str = "sum", group: Group = None) -> Tensor:
    """Do :func:`reduce_scatter` into output, which it gives back."""
    _refuse_gradients(output, tensor)
    _ops.reduce_scatter_(output, tensor, op, _ops.name_of(group))
    return output


def all_to_all(
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Send each rank a block along the first dimension and receive one from each (ncclAlltoAll).

    Args:
        tensor: the blocks for the ranks, in their order.
        output_split_sizes: rows that come from each rank; None: all blocks are of one size.
        input_split_sizes: rows that go to each rank; None: all blocks are of one size.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor: the blocks of the ranks, in their order.
    """
    return _ops.all_to_all(tensor, output_split_sizes, input_split_sizes, _ops.name_of(group))


def all_to_all_(
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Do :func:`all_to_all` into output, which it gives back."""
    _refuse_gradients(output, tensor)
    _ops.all_to_all_(output, tensor, output_split_sizes, input_split_sizes, _ops.name_of(group))
    return output


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> Tensor:
    """Join the tensors of all ranks along the first dimension, on one rank (ncclGather).

    Args:
        tensor: this rank's block, of the same shape on every rank.
        dst: the rank in the group that gets them.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor, ``(n * tensor.shape[0], *tensor.shape[1:])``; zeros on the other ranks.
    """
    return _ops.gather(tensor, dst, _ops.name_of(group))


def scatter(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Give each rank its block of one rank's tensor (ncclScatter).

    Args:
        tensor: a block for each rank along the first dimension; on the others of the same shape.
        src: the rank in the group whose blocks they are.
        group: a group or its name; None is the default one.

    Returns:
        A new tensor, ``(tensor.shape[0] / n, *tensor.shape[1:])`` for n ranks.
    """
    return _ops.scatter(tensor, src, _ops.name_of(group))
