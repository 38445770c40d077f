"""Collectives on lists or parts of tensors.

Each is issued as one NCCL group of operations directly on the user's tensors: nothing is copied to
or from a flat buffer, and unless noted otherwise the parts may differ in size. Tensors must be
contiguous, of one dtype that NCCL supports, and on one device of the group's backends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pynccl import nccl
from pynccl.mirror.base.checks import (
    Arguments,
    check_blocks,
    check_length,
    check_same_dtype,
    check_same_size,
    check_tensor,
    check_tensor_list,
    checked_ints,
    contiguous,
    real,
    reals,
)
from pynccl.mirror.base.errors import MismatchError
from pynccl.mirror.base.operators import Operator, ReduceOp
from pynccl.mirror.group.comm_stream import Call
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import group_or_default, member, root_of

__all__ = [
    "all_gather",
    "all_to_all",
    "all_to_all_single",
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
    """See torch.distributed.all_gather.

    Issued as one NCCL group of ncclBroadcast, one from each rank, so the sizes may differ.
    """
    check_tensor_list(tensor_list, "tensor_list")
    check_tensor(tensor, "tensor")
    check_same_dtype({"tensor_list": tensor_list, "tensor": tensor})
    pg = member(group, "all_gather")
    if pg is None:
        return None
    check_length(tensor_list, pg.size(), "tensor_list")
    outputs, own, rank = reals(tensor_list), real(tensor), pg.rank()
    check_same_size(outputs[rank], own, f"tensor_list[{rank}]", "tensor")
    arguments: Arguments = {"tensor_list": outputs, "tensor": own}
    return gather_everywhere(pg, "all_gather", outputs, own, arguments, async_op)


def gather_everywhere(
    pg: ProcessGroup,
    kind: str,
    outputs: list[torch.Tensor],
    own: torch.Tensor,
    arguments: Arguments,
    async_op: bool = False,
) -> Work | None:
    """Broadcast the tensor of each rank to the corresponding output."""
    rank = pg.rank()

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for root, out in enumerate(outputs):
                comm.broadcast(own if root == rank else out, root, out=out, stream=stream)

    return pg.issue(Call(kind, own, enqueue, list(outputs), arguments, async_op))


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """See torch.distributed.gather. Issued as one NCCL group of ncclSend and ncclRecv."""
    check_tensor(tensor, "tensor")
    outputs = _list_of_root(tensor, gather_list, "gather_list")
    pg = member(group, "gather")
    if pg is None:
        return None
    root = root_of(pg, dst, group_dst, "dst")
    check_root_list(pg, root, outputs, "gather_list", "destination")
    _check_parts(pg, outputs, tensor, "gather_list")
    own, parts = real(tensor), reals(outputs)
    arguments: Arguments = {"gather_list": parts, "tensor": own}
    return to_root(pg, "gather", own, parts, root, arguments, async_op)


def _list_of_root(
    tensor: torch.Tensor, given: list[torch.Tensor] | None, name: str
) -> list[torch.Tensor]:
    if given is None or (isinstance(given, Sequence) and not given):
        return []
    check_tensor_list(given, name)
    check_same_dtype({"tensor": tensor, name: given})
    return given


def _check_parts(pg: ProcessGroup, parts: list[torch.Tensor], own: torch.Tensor, name: str) -> None:
    if parts:
        check_length(parts, pg.size(), name)
        for index, part in enumerate(parts):
            check_same_size(part, own, f"{name}[{index}]", "tensor")


def check_root_list(
    pg: ProcessGroup, root: int, given: Sequence[object] | None, name: str, side: str
) -> None:
    """Raise ValueError unless a list is passed on the root, and on no other rank.

    Args:
        pg: the group.
        root: the rank that needs the list.
        given: the list; None or empty if it is not passed.
        name: the name of the argument.
        side: the role of the root, "source" or "destination".
    """
    if pg.rank() == root and not given:
        raise ValueError(f"Argument ``{name}`` must be specified on {side} rank.")
    if pg.rank() != root and given:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{side} ranks.")


def to_root(
    pg: ProcessGroup,
    kind: str,
    own: torch.Tensor,
    parts: Sequence[torch.Tensor],
    root: int,
    arguments: Arguments,
    async_op: bool = False,
    result: list[torch.Tensor] | None = None,
) -> Work | None:
    """Send each rank's tensor to the root, whose parts may differ in size.

    Args:
        pg: the group.
        kind: the name of the operation.
        own: the tensor of this rank.
        parts: on the root, a tensor for each rank.
        root: the rank in the group that receives.
        arguments: the tensors by the names of the parameters.
        async_op: whether to return the Work.
        result: the output tensors; None is the parts.
    """

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, part in enumerate(parts):
                comm.recv(part, peer, stream=stream)
            comm.send(own, root, stream=stream)

    outputs = list(parts) if result is None else result
    return pg.issue(Call(kind, own, enqueue, outputs, arguments, async_op))


def gather_single(
    tensor: torch.Tensor,
    gather_tensor: torch.Tensor | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
):
    """See torch.distributed.gather_single, available since torch 2.14.

    Issued as one NCCL group of ncclSend and ncclRecv. For inputs of shape (n, ...), gather_tensor
    has shape (ranks * n, ...) or (ranks, n, ...). It is ignored on all ranks but the destination.
    """
    check_tensor(tensor, "tensor")
    pg = member(group, "gather_single")
    if pg is None:
        return None
    root = root_of(pg, dst, group_dst, "dst")
    own = real(tensor)
    if root != pg.rank():
        return to_root(pg, "gather_single", own, [], root, {"tensor": own}, async_op)
    if gather_tensor is None:
        raise ValueError("gather_tensor must be specified on the destination rank")
    check_tensor(gather_tensor, "gather_tensor")
    check_same_dtype({"tensor": tensor, "gather_tensor": gather_tensor})
    check_blocks(gather_tensor, tensor, pg.size(), "gather_tensor", "tensor")
    parts = real(contiguous(gather_tensor, "gather_tensor")).view(-1).tensor_split(pg.size())
    arguments: Arguments = {"gather_tensor": gather_tensor, "tensor": own}
    return to_root(pg, "gather_single", own, parts, root, arguments, async_op, [gather_tensor])


def gather_into_tensor(
    tensor: torch.Tensor,
    gather_tensor: torch.Tensor | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
):
    """See torch.distributed.gather_into_tensor, available since torch 2.14.

    Older name of :func:`gather_single`.
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
    """See torch.distributed.scatter. Issued as one NCCL group of ncclSend and ncclRecv."""
    check_tensor(tensor, "tensor")
    inputs = _list_of_root(tensor, scatter_list, "scatter_list")
    pg = group_or_default(group)
    root = root_of(pg, src, group_src, "src")
    if member(pg, "scatter") is None:
        return None
    check_root_list(pg, root, inputs, "scatter_list", "source")
    _check_parts(pg, inputs, tensor, "scatter_list")
    own, parts = real(tensor), reals(inputs)
    arguments: Arguments = {"tensor": own, "scatter_list": parts}
    return from_root(pg, "scatter", own, parts, root, arguments, async_op)


def from_root(
    pg: ProcessGroup,
    kind: str,
    own: torch.Tensor,
    parts: Sequence[torch.Tensor],
    root: int,
    arguments: Arguments,
    async_op: bool = False,
) -> Work | None:
    """Receive this rank's part from the root, like :func:`to_root` in the other direction."""

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, part in enumerate(parts):
                comm.send(part, peer, stream=stream)
            comm.recv(own, root, stream=stream)

    return pg.issue(Call(kind, own, enqueue, [own], arguments, async_op))


def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Operator = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """See torch.distributed.reduce_scatter.

    Issued as one NCCL group of ncclReduce, one to each rank. op is as for :func:`all_reduce`.
    """
    check_tensor(output, "output")
    check_tensor_list(input_list, "input_list")
    arguments: Arguments = {"output": output, "input_list": input_list}
    check_same_dtype(arguments)
    pg = member(group, "reduce_scatter")
    if pg is None:
        return None
    check_length(input_list, pg.size(), "input_list")
    rank = pg.rank()
    check_same_size(input_list[rank], output, f"input_list[{rank}]", "output")
    inputs, red_op = list(input_list), pg.red_op(op, output)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for root, tensor in enumerate(inputs):
                out = output if root == rank else None
                comm.reduce(tensor, root, red_op, out=out, stream=stream)

    return pg.issue(Call("reduce_scatter", output, enqueue, [output], arguments, async_op))


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
    check_same_dtype(
        {"output_tensor_list": output_tensor_list, "input_tensor_list": input_tensor_list}
    )
    check_length(output_tensor_list, pg.size(), "output_tensor_list")
    check_length(input_tensor_list, pg.size(), "input_tensor_list")
    outputs, inputs = reals(output_tensor_list), reals(input_tensor_list)
    own = f"tensor_list[{pg.rank()}]"
    check_same_size(outputs[pg.rank()], inputs[pg.rank()], f"output_{own}", f"input_{own}")
    arguments: Arguments = {"output_tensor_list": outputs, "input_tensor_list": inputs}
    return _exchange(pg, "all_to_all", outputs, inputs, outputs, arguments, async_op)


def _exchange(
    pg: ProcessGroup,
    kind: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    result: list[torch.Tensor],
    arguments: Arguments,
    async_op: bool,
) -> Work | None:
    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, (out, sent) in enumerate(zip(outputs, inputs, strict=True)):
                comm.send(sent, peer, stream=stream)
                comm.recv(out, peer, stream=stream)

    return pg.issue(Call(kind, inputs[0], enqueue, result, arguments, async_op))


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
    check_same_dtype({"output": output, "input": input})
    out, sent = real(output), real(input)
    arguments: Arguments = {"output": out, "input": sent}
    size = pg.size()
    output_sizes = _split_sizes(output_split_sizes, "output")
    input_sizes = _split_sizes(input_split_sizes, "input")
    equal = not output_sizes and not input_sizes
    if equal and out.numel() == sent.numel() and sent.numel() % size == 0:
        _check_splits(output, [], size, "output")
        _check_splits(input, [], size, "input")

        def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
            comm.all_to_all(sent, out=out, stream=stream)

        return pg.issue(Call("all_to_all_single", sent, enqueue, [output], arguments, async_op))
    outputs = _split(out, output_sizes, size, "output")
    inputs = _split(sent, input_sizes, size, "input")
    own = f"the part of rank {pg.rank()}"
    check_same_size(outputs[pg.rank()], inputs[pg.rank()], f"output: {own}", "that of input")
    return _exchange(pg, "all_to_all_single", outputs, inputs, [output], arguments, async_op)


def _split_sizes(sizes: Sequence[int] | None, name: str) -> list[int]:
    """Return the sizes of the parts of a tensor; none if they are equal."""
    return [] if sizes is None else checked_ints(sizes, f"{name}_split_sizes")


def _check_splits(tensor: torch.Tensor, sizes: list[int], ranks: int, name: str) -> None:
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise MismatchError(
                f"{name}: Tensor's dim 0 does not divide equally across group size: {rows} by "
                f"{ranks}"
            )
    elif len(sizes) != ranks:
        raise MismatchError(
            f"{name}_split_sizes: Number of tensor splits not equal to group size: {len(sizes)} "
            f"for {ranks}"
        )
    elif min(sizes) < 0:
        raise MismatchError(f"{name}_split_sizes: {min(sizes)} is negative")
    elif sum(sizes) != rows:
        raise MismatchError(
            f"{name}_split_sizes: Split sizes doesn't match total dim 0 size of {name}: "
            f"{sum(sizes)} for {rows}"
        )


def _split(tensor: torch.Tensor, sizes: list[int], ranks: int, name: str) -> Sequence[torch.Tensor]:
    """Return the parts of a tensor, as views."""
    _check_splits(tensor, sizes, ranks, name)
    rows = contiguous(tensor, name) if tensor.dim() else tensor.reshape(1)
    return rows.split(sizes or [rows.shape[0] // ranks] * ranks)
