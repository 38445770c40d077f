"""Collectives as torch operators, for torch.compile and with gradients.

Compiled functions call them without a graph break. The functional form returns a new tensor and is
differentiable. The in-place form, whose name ends in ``_``, writes into its tensor or output
argument and is not differentiable. The operators are registered as ``torch.ops.pynccl.all_reduce``
and so on; a compiled graph refers to a group by its name.

    @torch.compile(fullgraph=True)
    def step(x, w):
        return ops.all_reduce(x @ w).relu()

A group is a pynccl group (``pynccl.init_process_group``, ``pynccl.new_group``) or its name.
Operations run on the current stream or, on CPUs, in the calling thread, in the order of the graph.
That order is the same on all ranks that compile the same function. A compiled graph may omit an
operation whose result is unused; it does so on every rank.

Gradients match torch.distributed.nn: they are gradients of the sum of all ranks' losses, so every
rank must run its backward pass. They are defined for ``"sum"`` and ``"avg"``. For other operators,
torch.distributed.nn returns a value that is not the derivative; pynccl raises an error, as torch's
functional collectives do.

Compiled functions can also call the torch.distributed mirror (``pynccl.all_reduce`` ...); each call
is a graph break.

Every function raises:
    ValueError: an invalid argument: an unknown operator or group, a rank out of range, or a tensor
        whose first dimension does not fit.
    pynccl.DistBackendError: NCCL failed, or a rank died.
    RuntimeError: in an in-place form, a tensor requires a gradient; in a backward pass, the
        operator has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pynccl import _ops
from pynccl._ops import Group, Operator

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
    """Raise if a tensor requires a gradient, which an in-place operation would ignore."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(
            "a tensor requires a gradient, which the in-place form does not support; use the "
            "functional form, or torch.no_grad()"
        )


def all_reduce(tensor: Tensor, op: Operator = "sum", group: Group = None) -> Tensor:
    """Reduce the tensors of all ranks elementwise; every rank gets the result (ncclAllReduce).

    Args:
        tensor: this rank's input, of the same shape and dtype on every rank.
        op: ``"sum"``, ``"avg"``, ``"prod"``, ``"min"`` or ``"max"``, or the same as a torch
            ReduceOp or a :class:`pynccl.nccl.RedOp`.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.all_reduce(tensor, _ops.op_name(op), _ops.name_of(group))


def all_reduce_(tensor: Tensor, op: Operator = "sum", group: Group = None) -> Tensor:
    """The in-place form of :func:`all_reduce` (ncclAllReduce).

    Args:
        tensor: this rank's input and the result.
        op: ``"sum"``, ``"avg"``, ``"prod"``, ``"min"`` or ``"max"``, or the same as a torch
            ReduceOp or a :class:`pynccl.nccl.RedOp`.
        group: a group or its name; None is the default group.

    Returns:
        The tensor.

    Raises:
        ValueError, DistBackendError, RuntimeError: see :mod:`pynccl.ops`.
    """
    _refuse_gradients(tensor)
    _ops.all_reduce_(tensor, _ops.op_name(op), _ops.name_of(group))
    return tensor


def broadcast(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Copy the tensor of one rank to every rank (ncclBroadcast).

    Args:
        tensor: the data on the source rank; on the others, a tensor of the same shape and dtype.
        src: the source, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.broadcast(tensor, src, _ops.name_of(group))


def broadcast_(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """The in-place form of :func:`broadcast` (ncclBroadcast).

    Args:
        tensor: the data on the source rank; the destination on the others.
        src: the source, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        The tensor.

    Raises:
        ValueError, DistBackendError, RuntimeError: see :mod:`pynccl.ops`.
    """
    _refuse_gradients(tensor)
    _ops.broadcast_(tensor, src, _ops.name_of(group))
    return tensor


def reduce(tensor: Tensor, dst: int = 0, op: Operator = "sum", group: Group = None) -> Tensor:
    """Reduce the tensors of all ranks elementwise; one rank gets the result (ncclReduce).

    Args:
        tensor: this rank's input, of the same shape and dtype on every rank.
        dst: the destination, a rank in the group.
        op: as for :func:`all_reduce`.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of the same shape and dtype: the result on the destination, zeros on the
        others.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.reduce(tensor, dst, _ops.op_name(op), _ops.name_of(group))


def all_gather(tensor: Tensor, group: Group = None) -> Tensor:
    """Concatenate the tensors of all ranks along dimension 0, on every rank (ncclAllGather).

    Args:
        tensor: this rank's block, of the same shape and dtype on every rank.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(n * tensor.shape[0], *tensor.shape[1:])`` for n ranks.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.all_gather(tensor, _ops.name_of(group))


def all_gather_(output: Tensor, tensor: Tensor, group: Group = None) -> Tensor:
    """The in-place form of :func:`all_gather` (ncclAllGather).

    Args:
        output: the result, contiguous, of shape ``(n * tensor.shape[0], *tensor.shape[1:])``.
        tensor: this rank's block.
        group: a group or its name; None is the default group.

    Returns:
        The output.

    Raises:
        ValueError, DistBackendError, RuntimeError: see :mod:`pynccl.ops`.
    """
    _refuse_gradients(output, tensor)
    _ops.all_gather_(output, tensor, _ops.name_of(group))
    return output


def reduce_scatter(tensor: Tensor, op: Operator = "sum", group: Group = None) -> Tensor:
    """Reduce the tensors of all ranks; rank i gets block i of the result (ncclReduceScatter).

    Args:
        tensor: one block per rank along the first dimension.
        op: as for :func:`all_reduce`.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(tensor.shape[0] / n, *tensor.shape[1:])`` for n ranks.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.reduce_scatter(tensor, _ops.op_name(op), _ops.name_of(group))


def reduce_scatter_(
    output: Tensor, tensor: Tensor, op: Operator = "sum", group: Group = None
) -> Tensor:
    """The in-place form of :func:`reduce_scatter` (ncclReduceScatter).

    Args:
        output: the result, contiguous, of shape ``(tensor.shape[0] / n, *tensor.shape[1:])``.
        tensor: one block per rank along the first dimension.
        op: as for :func:`all_reduce`.
        group: a group or its name; None is the default group.

    Returns:
        The output.

    Raises:
        ValueError, DistBackendError, RuntimeError: see :mod:`pynccl.ops`.
    """
    _refuse_gradients(output, tensor)
    _ops.reduce_scatter_(output, tensor, _ops.op_name(op), _ops.name_of(group))
    return output


def all_to_all(
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
) -> Tensor:
    """Send a block along dimension 0 to each rank, and receive one from each (ncclAlltoAll).

    With split sizes, it is issued as a group of ncclSend and ncclRecv.

    Args:
        tensor: the blocks for the ranks, in rank order.
        output_split_sizes: the number of rows from each rank; None for blocks of equal size.
        input_split_sizes: the number of rows for each rank; None for blocks of equal size.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor: the blocks from the ranks, in rank order.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.all_to_all(tensor, output_split_sizes, input_split_sizes, _ops.name_of(group))


def all_to_all_(
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
) -> Tensor:
    """The in-place form of :func:`all_to_all` (ncclAlltoAll).

    Args:
        output: the result, contiguous.
        tensor: the blocks for the ranks, in rank order.
        output_split_sizes: the number of rows from each rank; None for blocks of equal size.
        input_split_sizes: the number of rows for each rank; None for blocks of equal size.
        group: a group or its name; None is the default group.

    Returns:
        The output.

    Raises:
        ValueError, DistBackendError, RuntimeError: see :mod:`pynccl.ops`.
    """
    _refuse_gradients(output, tensor)
    _ops.all_to_all_(output, tensor, output_split_sizes, input_split_sizes, _ops.name_of(group))
    return output


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> Tensor:
    """Concatenate the tensors of all ranks along dimension 0, on one rank (ncclGather).

    Args:
        tensor: this rank's block, of the same shape and dtype on every rank.
        dst: the destination, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(n * tensor.shape[0], *tensor.shape[1:])`` for n ranks: the result
        on the destination, zeros on the others.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.gather(tensor, dst, _ops.name_of(group))


def scatter(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Send block i of the tensor of one rank to rank i (ncclScatter).

    Args:
        tensor: on the source, one block per rank along the first dimension; on the others, a tensor
            of the same shape and dtype.
        src: the source, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(tensor.shape[0] / n, *tensor.shape[1:])`` for n ranks.

    Raises:
        ValueError, DistBackendError: see :mod:`pynccl.ops`.
    """
    return _ops.scatter(tensor, src, _ops.name_of(group))
