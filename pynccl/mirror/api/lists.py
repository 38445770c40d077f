"""Collectives on lists or parts of tensors.

Each is issued as one NCCL group of operations directly on the user's tensors: nothing is copied to
or from a flat buffer, and unless noted otherwise the parts may differ in size. Tensors must be
contiguous, of one dtype that NCCL supports, and on one device of the group's backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from pynccl import nccl
from pynccl.mirror.base.checks import (
    check_length,
    check_same_dtype,
    check_same_size,
    check_tensor,
    check_tensor_list,
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
    check_same_dtype([*tensor_list, tensor])
    pg = member(group, "all_gather")
    if pg is None:
        return None
    check_length(tensor_list, pg.size(), "tensor_list")
    return gather_everywhere(pg, "all_gather", [reals(tensor_list)], [real(tensor)], async_op)


def gather_everywhere(
    pg: ProcessGroup,
    kind: str,
    outputs: list[list[torch.Tensor]],
    inputs: list[torch.Tensor],
    async_op: bool = False,
) -> Work | None:
    """Broadcast each input from each rank to the corresponding output."""
    rank = pg.rank()
    for output, own in zip(outputs, inputs, strict=True):
        check_same_size([output[rank]], own, "the output of this rank")

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for output, own in zip(outputs, inputs, strict=True):
                for root, out in enumerate(output):
                    comm.broadcast(own if root == rank else out, root, out=out, stream=stream)

    return pg.issue(Call(kind, inputs[0], enqueue, list(chain(*outputs)), async_op))


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
    root = root_of(pg, dst, group_dst)
    check_root_list(pg, root, outputs, "gather_list", "destination")
    _check_parts(pg, outputs, tensor, "gather_list")
    return to_root(pg, "gather", real(tensor), reals(outputs), root, async_op)


def _list_of_root(
    tensor: torch.Tensor, given: list[torch.Tensor] | None, name: str
) -> list[torch.Tensor]:
    if given:
        check_tensor_list(given, name)
    check_same_dtype([tensor, *(given or [])])
    return given or []


def _check_parts(pg: ProcessGroup, parts: list[torch.Tensor], own: torch.Tensor, name: str) -> None:
    if parts:
        check_length(parts, pg.size(), name)
        check_same_size(parts, own, name)


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
        async_op: whether to return the Work.
        result: the output tensors; None is the parts.
    """

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, part in enumerate(parts):
                comm.recv(part, peer, stream=stream)
            comm.send(own, root, stream=stream)

    return pg.issue(Call(kind, own, enqueue, list(parts) if result is None else result, async_op))


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
    root = root_of(pg, dst, group_dst)
    if root != pg.rank():
        return to_root(pg, "gather_single", real(tensor), [], root, async_op)
    if gather_tensor is None:
        raise ValueError("gather_tensor must be specified on the destination rank")
    check_tensor(gather_tensor, "gather_tensor")
    check_same_dtype([tensor, gather_tensor])
    if gather_tensor.numel() != pg.size() * tensor.numel():
        raise MismatchError(
            f"gather_tensor: has {gather_tensor.numel()} elements, must have {tensor.numel()} for "
            f"each of the {pg.size()} ranks"
        )
    parts = real(contiguous(gather_tensor, "gather_tensor")).view(-1).tensor_split(pg.size())
    return to_root(pg, "gather_single", real(tensor), parts, root, async_op, [gather_tensor])


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
    root = root_of(pg, src, group_src)
    if member(pg, "scatter") is None:
        return None
    check_root_list(pg, root, inputs, "scatter_list", "source")
    _check_parts(pg, inputs, tensor, "scatter_list")
    return from_root(pg, "scatter", real(tensor), reals(inputs), root, async_op)


def from_root(
    pg: ProcessGroup,
    kind: str,
    own: torch.Tensor,
    parts: Sequence[torch.Tensor],
    root: int,
    async_op: bool = False,
) -> Work | None:
    """Receive this rank's part from the root, like :func:`to_root` in the other direction."""

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, part in enumerate(parts):
                comm.send(part, peer, stream=stream)
            comm.recv(own, root, stream=stream)

    return pg.issue(Call(kind, own, enqueue, [own], async_op))


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
    check_same_dtype([output, *input_list])
    pg = member(group, "reduce_scatter")
    if pg is None:
        return None
    check_length(input_list, pg.size(), "input_list")
    rank = pg.rank()
    check_same_size([input_list[rank]], output, "the input for this rank")
    inputs, red_op = list(input_list), pg.red_op(op, output)

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for root, tensor in enumerate(inputs):
                out = output if root == rank else None
                comm.reduce(tensor, root, red_op, out=out, stream=stream)

    return pg.issue(Call("reduce_scatter", output, enqueue, [output], async_op))


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
    check_same_dtype([*output_tensor_list, *input_tensor_list])
    check_length(output_tensor_list, pg.size(), "output_tensor_list")
    check_length(input_tensor_list, pg.size(), "input_tensor_list")
    outputs, inputs = reals(output_tensor_list), reals(input_tensor_list)
    own = pg.rank()
    check_same_size([outputs[own]], inputs[own], "output_tensor_list of this rank")
    return _exchange(pg, "all_to_all", outputs, inputs, outputs, async_op)


def _exchange(
    pg: ProcessGroup,
    kind: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    result: list[torch.Tensor],
    async_op: bool,
) -> Work | None:
    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, (out, sent) in enumerate(zip(outputs, inputs, strict=True)):
                comm.send(sent, peer, stream=stream)
                comm.recv(out, peer, stream=stream)

    return pg.issue(Call(kind, inputs[0], enqueue, result, async_op))


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
    check_same_dtype([output, input])
    out, sent = real(output), real(input)
    size = pg.size()
    equal = not output_split_sizes and not input_split_sizes
    if equal and out.numel() == sent.numel() and sent.numel() % size == 0:
        _check_splits(output, None, size, "output")
        _check_splits(input, None, size, "input")

        def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
            comm.all_to_all(sent, out=out, stream=stream)

        return pg.issue(Call("all_to_all_single", sent, enqueue, [output], async_op))
    outputs = _split(out, output_split_sizes, size, "output")
    inputs = _split(sent, input_split_sizes, size, "input")
    check_same_size([outputs[pg.rank()]], inputs[pg.rank()], "output from this rank")
    return _exchange(pg, "all_to_all_single", outputs, inputs, [output], async_op)


def _check_splits(tensor: torch.Tensor, sizes: Sequence[int] | None, ranks: int, name: str) -> None:
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
    elif sum(sizes) != rows:
        raise MismatchError(
            f"{name}_split_sizes: Split sizes doesn't match total dim 0 size: {sum(sizes)} for "
            f"{rows}"
        )


def _split(
    tensor: torch.Tensor, sizes: Sequence[int] | None, ranks: int, name: str
) -> Sequence[torch.Tensor]:
    """Return the parts of a tensor, as views."""
    _check_splits(tensor, sizes, ranks, name)
    rows = contiguous(tensor, name) if tensor.dim() else tensor.reshape(1)
    return rows.split(list(sizes) if sizes else [rows.shape[0] // ranks] * ranks)
