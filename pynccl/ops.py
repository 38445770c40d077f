"""Collectives as torch operators, for torch.compile and with gradients.

Compiled functions call them without a graph break. Each returns a new tensor, and is
differentiable. The operators are registered as ``torch.ops.pynccl.all_reduce`` and so on; a
compiled graph refers to a group by its name.

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
    RuntimeError: in a backward pass, the operator has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pynccl.mirror.api import collectives, lists
from pynccl.mirror.base import operators
from pynccl.mirror.base.operators import Operator
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.world import _get_default_group, world

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

Group = ProcessGroup | str | None


def all_reduce(tensor: Tensor, op: Operator = "sum", group: Group = None) -> Tensor:
    """Reduce the tensors of all ranks elementwise; every rank gets the result (ncclAllReduce).

    Args:
        tensor: this rank's input, of the same shape and dtype on every rank.
        op: ``"sum"``, ``"avg"``, ``"prod"``, ``"min"`` or ``"max"``, or the same as a torch
            ReduceOp or a :class:`pynccl.nccl.RedOp`.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of the same shape and dtype.
    """
    return _all_reduce(tensor, _op_name(op), _name_of(group))


def broadcast(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Copy the tensor of one rank to every rank (ncclBroadcast).

    Args:
        tensor: the data on the source rank; on the others, a tensor of the same shape and dtype.
        src: the source, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of the same shape and dtype.
    """
    return _broadcast(tensor, src, _name_of(group))


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
    """
    return _reduce(tensor, dst, _op_name(op), _name_of(group))


def all_gather(tensor: Tensor, group: Group = None) -> Tensor:
    """Concatenate the tensors of all ranks along dimension 0, on every rank (ncclAllGather).

    Args:
        tensor: this rank's block, of the same shape and dtype on every rank.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(n * tensor.shape[0], *tensor.shape[1:])`` for n ranks.
    """
    return _all_gather(tensor, _name_of(group))


def reduce_scatter(tensor: Tensor, op: Operator = "sum", group: Group = None) -> Tensor:
    """Reduce the tensors of all ranks; rank i gets block i of the result (ncclReduceScatter).

    Args:
        tensor: one block per rank along the first dimension.
        op: as for :func:`all_reduce`.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(tensor.shape[0] / n, *tensor.shape[1:])`` for n ranks.
    """
    return _reduce_scatter(tensor, _op_name(op), _name_of(group))


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
    """
    return _all_to_all(tensor, output_split_sizes, input_split_sizes, _name_of(group))


def gather(tensor: Tensor, dst: int = 0, group: Group = None) -> Tensor:
    """Concatenate the tensors of all ranks along dimension 0, on one rank (ncclGather).

    Args:
        tensor: this rank's block, of the same shape and dtype on every rank.
        dst: the destination, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(n * tensor.shape[0], *tensor.shape[1:])`` for n ranks: the result
        on the destination, zeros on the others.
    """
    return _gather(tensor, dst, _name_of(group))


def scatter(tensor: Tensor, src: int = 0, group: Group = None) -> Tensor:
    """Send block i of the tensor of one rank to rank i (ncclScatter).

    Args:
        tensor: on the source, one block per rank along the first dimension; on the others, a tensor
            of the same shape and dtype.
        src: the source, a rank in the group.
        group: a group or its name; None is the default group.

    Returns:
        A new tensor of shape ``(tensor.shape[0] / n, *tensor.shape[1:])`` for n ranks.
    """
    return _scatter(tensor, src, _name_of(group))


# The operators of torch.ops.pynccl, which take a group by its name: a compiled graph can contain a
# string, but no object. "" is the default group.


def _operator(op: str) -> Any:  # noqa: ANN401 - torch's enum has no type
    operators.name_of(op)
    return operators.torch_operator(op)


def _name_of_constant(op: Any) -> str:  # noqa: ANN401
    return operators.name_of(op)


# torch.compile evaluates it while tracing and guards the identity of the argument, which lives as
# long as the process.
torch.compiler.assume_constant_result(_name_of_constant)


def _op_name(op: Operator) -> str:
    """Return the name of a reduction operator, which a compiled graph can contain.

    In a compiled function, op is a str, one of torch's bare values or a RedOp.
    """
    if isinstance(op, str):
        return op
    if type(op) is operators.ReduceOp:
        return operators.name_of(op)
    return _name_of_constant(op)


def _name_of(group: Group) -> str:
    """Return the name of a group; "" is the default group."""
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    name = getattr(group, "group_name", None)
    if name is None:
        raise ValueError(f"group: {group!r} is not a group of this rank")
    return str(name)


def _group(name: str) -> ProcessGroup:
    """Return the group with a name.

    Raises:
        ValueError: there is no such group.
    """
    if not name:
        return _get_default_group()
    for group, known in world.groups.items():
        if known == name:
            return group
    raise ValueError(
        f"group: no group {name!r} is registered: it was not created here or has been destroyed"
    )


def _rank(rank: int, name: str, group: str) -> int:
    """Return a rank in a group.

    Raises:
        ValueError: the group has no such rank.
    """
    size = _group(group).size()
    if not 0 <= rank < size:
        raise ValueError(f"{name}: rank {rank} is out of range for a group of size {size}")
    return rank


def _call(
    function: Callable[..., object],
    tensor: Tensor,
    group: str,
    *arguments: object,
    **options: object,
) -> None:
    """Call a function of the mirror, whose errors name its own parameters."""
    pg = _group(group)
    try:
        function(*arguments, group=pg, **options)
    except (TypeError, ValueError, RuntimeError):
        pg.check_usable(tensor.contiguous(), "tensor")
        raise


def _like(tensor: Tensor, rows: int) -> Tensor:
    """Return a new contiguous tensor with the given number of rows."""
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _gathered(tensor: Tensor, group: str) -> Tensor:
    if tensor.dim() == 0:
        raise ValueError("tensor: a scalar has no first dimension to gather along")
    return _like(tensor, tensor.shape[0] * _group(group).size())


def _block(tensor: Tensor, group: str) -> Tensor:
    size = _group(group).size()
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise ValueError(
            f"tensor: the first dimension of shape {tuple(tensor.shape)} cannot be divided among "
            f"{size} ranks"
        )
    return _like(tensor, tensor.shape[0] // size)


def _split_sizes(tensor: Tensor, sizes: list[int] | None, name: str, group: str) -> list[int]:
    """Return the rows for (or from) each rank: sizes, or equal parts if it is None."""
    size = _group(group).size()
    if sizes is None:
        _block(tensor, group)
        return [tensor.shape[0] // size] * size
    if len(sizes) != size:
        raise ValueError(f"{name}: {len(sizes)} sizes for {size} ranks")
    return sizes


def _all_to_all_result(
    tensor: Tensor, output_sizes: list[int] | None, input_sizes: list[int] | None, group: str
) -> Tensor:
    _split_sizes(tensor, input_sizes, "input_split_sizes", group)
    return _like(tensor, sum(_split_sizes(tensor, output_sizes, "output_split_sizes", group)))


# Schemas are inferred from the annotations, result shapes come from the fake implementations.


@torch.library.custom_op("pynccl::all_reduce", mutates_args=())
def _all_reduce(tensor: Tensor, op: str, group: str) -> Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    collectives.all_reduce(result, _operator(op), _group(group))
    return result


@torch.library.custom_op("pynccl::broadcast", mutates_args=())
def _broadcast(tensor: Tensor, src: int, group: str) -> Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    collectives.broadcast(result, group=_group(group), group_src=_rank(src, "src", group))
    return result


@torch.library.custom_op("pynccl::all_gather", mutates_args=())
def _all_gather(tensor: Tensor, group: str) -> Tensor:
    result = _gathered(tensor, group)
    _call(collectives.all_gather_single, tensor, group, result, tensor.contiguous())
    return result


@torch.library.custom_op("pynccl::reduce_scatter", mutates_args=())
def _reduce_scatter(tensor: Tensor, op: str, group: str) -> Tensor:
    result = _block(tensor, group)
    rows = tensor.contiguous()
    _call(collectives.reduce_scatter_single, tensor, group, result, rows, _operator(op))
    return result


@torch.library.custom_op("pynccl::all_to_all", mutates_args=())
def _all_to_all(
    tensor: Tensor,
    output_split_sizes: list[int] | None,
    input_split_sizes: list[int] | None,
    group: str,
) -> Tensor:
    result = _all_to_all_result(tensor, output_split_sizes, input_split_sizes, group)
    sizes = output_split_sizes, input_split_sizes
    _call(lists.all_to_all_single, tensor, group, result, tensor.contiguous(), *sizes)
    return result


# The rooted operators return a tensor of the same shape on every rank, zeros on ranks without a
# result, so that all ranks compile the same graph.


@torch.library.custom_op("pynccl::reduce", mutates_args=())
def _reduce(tensor: Tensor, dst: int, op: str, group: str) -> Tensor:
    _rank(dst, "dst", group)
    result = tensor.clone(memory_format=torch.contiguous_format)
    collectives.reduce(result, op=_operator(op), group=_group(group), group_dst=dst)
    return result if _group(group).rank() == dst else result.zero_()


@torch.library.custom_op("pynccl::gather", mutates_args=())
def _gather(tensor: Tensor, dst: int, group: str) -> Tensor:
    pg, result = _group(group), _gathered(tensor, group)
    blocks = list(result.chunk(pg.size())) if pg.rank() == _rank(dst, "dst", group) else None
    if not tensor.numel():
        return result
    _call(lists.gather, tensor, group, tensor.contiguous(), blocks, group_dst=dst)
    return result if blocks else result.zero_()


@torch.library.custom_op("pynccl::scatter", mutates_args=())
def _scatter(tensor: Tensor, src: int, group: str) -> Tensor:
    pg, result = _group(group), _block(tensor, group)
    is_root = pg.rank() == _rank(src, "src", group)
    blocks = list(tensor.contiguous().chunk(pg.size())) if is_root else None
    if not tensor.numel():
        return result
    _call(lists.scatter, tensor, group, result, blocks, group_src=src)
    return result


@_all_reduce.register_fake
def _(tensor: Tensor, op: str, group: str) -> Tensor:
    _operator(op)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@_broadcast.register_fake
def _(tensor: Tensor, src: int, group: str) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@_all_gather.register_fake
def _(tensor: Tensor, group: str) -> Tensor:
    return _gathered(tensor, group)


@_reduce_scatter.register_fake
def _(tensor: Tensor, op: str, group: str) -> Tensor:
    _operator(op)
    return _block(tensor, group)


@_all_to_all.register_fake
def _(
    tensor: Tensor,
    output_split_sizes: list[int] | None,
    input_split_sizes: list[int] | None,
    group: str,
) -> Tensor:
    return _all_to_all_result(tensor, output_split_sizes, input_split_sizes, group)


@_reduce.register_fake
def _(tensor: Tensor, dst: int, op: str, group: str) -> Tensor:
    _operator(op)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


@_gather.register_fake
def _(tensor: Tensor, dst: int, group: str) -> Tensor:
    return _gathered(tensor, group)


@_scatter.register_fake
def _(tensor: Tensor, src: int, group: str) -> Tensor:
    return _block(tensor, group)


# Gradients.


def _keep(*names: str) -> Any:  # noqa: ANN401 - torch's type for it is private
    """Return a setup_context that saves the arguments after the tensor for the backward pass."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        for name, value in zip(names, inputs[1:], strict=True):
            setattr(ctx, name, value)

    return setup_context


def _check_linear(op: str) -> None:
    if op not in ("sum", "avg"):
        raise RuntimeError(f'op: {op!r} has no gradient; only "sum" and "avg" do')


def _all_reduce_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
    _check_linear(ctx.op)
    return _all_reduce(grad, ctx.op, ctx.group), None, None


def _broadcast_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
    return _reduce(grad, ctx.src, "sum", ctx.group), None, None


def _reduce_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
    _check_linear(ctx.op)
    result = _broadcast(grad, ctx.dst, ctx.group)
    return _scaled(result, ctx.op, ctx.group), None, None, None


def _all_gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
    return _reduce_scatter(grad, "sum", ctx.group), None


def _reduce_scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
    _check_linear(ctx.op)
    return _scaled(_all_gather(grad, ctx.group), ctx.op, ctx.group), None, None


def _all_to_all_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
    return _all_to_all(grad, ctx.input_sizes, ctx.output_sizes, ctx.group), None, None, None


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
    return _scatter(grad, ctx.dst, ctx.group), None, None


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
    return _gather(grad, ctx.src, ctx.group), None, None


def _scaled(grad: Tensor, op: str, group: str) -> Tensor:
    return grad / _group(group).size() if op == "avg" else grad


_all_reduce.register_autograd(_all_reduce_backward, setup_context=_keep("op", "group"))
_broadcast.register_autograd(_broadcast_backward, setup_context=_keep("src", "group"))
_reduce.register_autograd(_reduce_backward, setup_context=_keep("dst", "op", "group"))
_all_gather.register_autograd(_all_gather_backward, setup_context=_keep("group"))
_reduce_scatter.register_autograd(_reduce_scatter_backward, setup_context=_keep("op", "group"))
_all_to_all.register_autograd(
    _all_to_all_backward, setup_context=_keep("output_sizes", "input_sizes", "group")
)
_gather.register_autograd(_gather_backward, setup_context=_keep("dst", "group"))
_scatter.register_autograd(_scatter_backward, setup_context=_keep("src", "group"))
