"""The collectives of a group, which check their arguments and issue the operation.

Ranks are group ranks. An operation on one tensor is one NCCL call. An operation on a list is one
NCCL group of calls directly on the user's tensors, so nothing is copied to or from a flat buffer,
and the parts may differ in size: all_gather is a broadcast from each rank, reduce_scatter a
reduction to each rank, the others are sends and receives.

Argument types are checked by the callers: the public functions and the methods of ProcessGroup.
Each operation returns the Work of an asynchronous call, else None.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from pynccl.mirror.base.checks import (
    check_length,
    check_same_dtype,
    check_same_size,
    contiguous,
    real,
    reals,
)
from pynccl.mirror.base.errors import MismatchError
from pynccl.mirror.base.operators import of_torch, resolve, supports_complex
from pynccl.mirror.group.base_group import BaseGroup
from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import Work
from pynccl.nccl import RedOp

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "check_root_list",
    "gather",
    "gather_everywhere",
    "gather_single",
    "move_parts",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "scatter",
]


def _resolve(group: BaseGroup, op: Any, tensor: torch.Tensor) -> RedOp:
    return resolve(op, tensor, group.comm_stream(tensor.device).pre_mul_sum)


def broadcast(
    group: BaseGroup, tensor: torch.Tensor, root: int, async_op: bool = False
) -> Work | None:
    """Copy the root's tensor to every rank."""
    calls = [Call("broadcast", tensor, root)]
    return group.issue(OperationRecord("broadcast", tensor, calls, [tensor], async_op))


def all_reduce(
    group: BaseGroup, tensor: torch.Tensor, op: Any, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all ranks in place, on every rank."""
    if tensor.is_complex() and not supports_complex(of_torch(op)):
        raise ValueError(f"all_reduce does not support {op} on complex tensors")
    calls = [Call("all_reduce", tensor, op=_resolve(group, op, tensor))]
    return group.issue(OperationRecord("all_reduce", tensor, calls, [tensor], async_op))


def reduce(
    group: BaseGroup, tensor: torch.Tensor, root: int, op: Any, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all ranks to the root."""
    calls = [Call("reduce", tensor, root, _resolve(group, op, tensor))]
    return group.issue(OperationRecord("reduce", tensor, calls, [tensor], async_op))


def _check_dtypes(output: torch.Tensor, input_: torch.Tensor) -> None:
    if output.dtype != input_.dtype:
        raise TypeError(
            f"output tensor must have the same type as input tensor: {output.dtype} is not "
            f"{input_.dtype}"
        )


def all_gather_single(
    group: BaseGroup, output: torch.Tensor, input_: torch.Tensor, async_op: bool = False
) -> Work | None:
    """Gather the tensors of all ranks into one tensor, on every rank."""
    out, own = real(output), real(input_)
    _check_dtypes(out, own)
    calls = [Call("all_gather", own, out=out)]
    return group.issue(OperationRecord("all_gather_single", own, calls, [output], async_op))


def reduce_scatter_single(
    group: BaseGroup, output: torch.Tensor, input_: torch.Tensor, op: Any, async_op: bool = False
) -> Work | None:
    """Reduce the tensors of all ranks; each rank receives its block of the result."""
    _check_dtypes(output, input_)
    calls = [Call("reduce_scatter", input_, op=_resolve(group, op, input_), out=output)]
    return group.issue(OperationRecord("reduce_scatter_single", input_, calls, [output], async_op))


def all_gather(
    group: BaseGroup, outputs: list[torch.Tensor], tensor: torch.Tensor, async_op: bool = False
) -> Work | None:
    """Gather the tensors of all ranks into a list, on every rank."""
    check_length(outputs, group.size(), "tensor_list")
    return gather_everywhere(group, "all_gather", [reals(outputs)], [real(tensor)], async_op)


def gather_everywhere(
    group: BaseGroup,
    kind: str,
    outputs: list[list[torch.Tensor]],
    inputs: list[torch.Tensor],
    async_op: bool = False,
) -> Work | None:
    """Broadcast each input from each rank to the corresponding output."""
    for output, own in zip(outputs, inputs, strict=True):
        check_same_size([output[group.rank()]], own, "the output of this rank")
    calls = [
        Call("broadcast", own if root == group.rank() else out, root, out=out)
        for output, own in zip(outputs, inputs, strict=True)
        for root, out in enumerate(output)
    ]
    result = list(itertools.chain(*outputs))
    return group.issue(OperationRecord(kind, inputs[0], calls, result, async_op))


def all_gather_coalesced(
    group: BaseGroup,
    output_lists: list[list[torch.Tensor]],
    inputs: list[torch.Tensor],
    async_op: bool = False,
) -> Work | None:
    """Gather several tensors of all ranks at once, into one list of outputs per rank."""
    check_length(output_lists, group.size(), "output_tensor_lists")
    for rank, output_list in enumerate(output_lists):
        if len(output_list) != len(inputs):
            raise MismatchError(
                f"output_tensor_lists: the list of rank {rank} has {len(output_list)} tensors, "
                f"must have one for each of the {len(inputs)} inputs"
            )
    outputs = [reals(of_input) for of_input in zip(*output_lists, strict=True)]
    return gather_everywhere(group, "all_gather_coalesced", outputs, reals(inputs), async_op)


def all_reduce_coalesced(
    group: BaseGroup, tensors: list[torch.Tensor], op: Any, async_op: bool = False
) -> Work | None:
    """Reduce several tensors of all ranks at once, in place."""
    if any(tensor.is_complex() for tensor in tensors) and not supports_complex(of_torch(op)):
        raise ValueError(f"all_reduce does not support {op} on complex tensors")
    red_op = _resolve(group, op, tensors[0])
    calls = [Call("all_reduce", tensor, op=red_op) for tensor in tensors]
    return group.issue(
        OperationRecord("all_reduce_coalesced", tensors[0], calls, list(tensors), async_op)
    )


def gather(
    group: BaseGroup,
    tensor: torch.Tensor,
    outputs: list[torch.Tensor],
    root: int,
    async_op: bool = False,
) -> Work | None:
    """Gather the tensors of all ranks into a list on the root; outputs is empty elsewhere."""
    check_root_list(group.rank(), root, outputs, "gather_list", "destination")
    if outputs:
        check_length(outputs, group.size(), "gather_list")
        check_same_size(outputs, tensor, "gather_list")
    own, parts = real(tensor), reals(outputs)
    return move_parts(group, "gather", own, parts, root, gathers=True, async_op=async_op)


def gather_single(
    group: BaseGroup,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    root: int,
    async_op: bool = False,
) -> Work | None:
    """Gather the tensors of all ranks into one on the root; output is None elsewhere.

    Raises:
        MismatchError: the size of the output is not the total size of the inputs.
    """
    parts: Sequence[torch.Tensor] = []
    result = []
    if output is not None:
        if output.numel() != group.size() * tensor.numel():
            raise MismatchError(
                f"gather_tensor: has {output.numel()} elements, must have {tensor.numel()} for "
                f"each of the {group.size()} ranks"
            )
        result = [output]
        parts = real(contiguous(output, "gather_tensor")).view(-1).tensor_split(group.size())
    calls = [Call("recv", part, peer) for peer, part in enumerate(parts)]
    calls.append(Call("send", real(tensor), root))
    return group.issue(OperationRecord("gather_single", tensor, calls, result, async_op))


def check_root_list(
    rank: int, root: int, given: Sequence[object] | None, name: str, side: str
) -> None:
    """Check that a list is passed on the root only.

    Args:
        rank: this rank in the group.
        root: the rank that needs the list.
        given: the list; None or empty if it is not passed.
        name: the name of the argument.
        side: the role of the root, "source" or "destination".

    Raises:
        ValueError: the list is missing on the root, or passed on another rank.
    """
    if rank == root and not given:
        raise ValueError(f"Argument ``{name}`` must be specified on {side} rank.")
    if rank != root and given:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on non-{side} ranks.")


def scatter(
    group: BaseGroup,
    tensor: torch.Tensor,
    inputs: list[torch.Tensor],
    root: int,
    async_op: bool = False,
) -> Work | None:
    """Send each rank its tensor from the root's list; inputs is empty elsewhere."""
    check_root_list(group.rank(), root, inputs, "scatter_list", "source")
    if inputs:
        check_length(inputs, group.size(), "scatter_list")
        check_same_size(inputs, tensor, "scatter_list")
    own, parts = real(tensor), reals(inputs)
    return move_parts(group, "scatter", own, parts, root, gathers=False, async_op=async_op)


def move_parts(
    group: BaseGroup,
    kind: str,
    own: torch.Tensor,
    parts: list[torch.Tensor],
    root: int,
    *,
    gathers: bool,
    async_op: bool = False,
) -> Work | None:
    """Transfer each rank's own part to or from the root, which has all parts.

    Parts may differ in size; they are passed on the root only.
    """
    of_own, of_parts = ("send", "recv") if gathers else ("recv", "send")
    calls = [Call(of_parts, part, peer) for peer, part in enumerate(parts)]
    calls.append(Call(of_own, own, root))
    return group.issue(OperationRecord(kind, own, calls, parts if gathers else [own], async_op))


def reduce_scatter(
    group: BaseGroup,
    output: torch.Tensor,
    inputs: list[torch.Tensor],
    op: Any,
    async_op: bool = False,
) -> Work | None:
    """Reduce lists of tensors of all ranks; rank i receives the reduction of the i-th tensors."""
    check_length(inputs, group.size(), "input_list")
    check_same_size([inputs[group.rank()]], output, "the input for this rank")
    red_op = _resolve(group, op, output)
    calls = [
        Call("reduce", sent, root, red_op, output if root == group.rank() else None)
        for root, sent in enumerate(inputs)
    ]
    return group.issue(OperationRecord("reduce_scatter", output, calls, [output], async_op))


def all_to_all(
    group: BaseGroup,
    outputs: list[torch.Tensor],
    inputs: list[torch.Tensor],
    async_op: bool = False,
) -> Work | None:
    """Send the i-th tensor of a list to rank i, and receive one from each rank."""
    check_same_dtype([*outputs, *inputs])
    check_length(outputs, group.size(), "output_tensor_list")
    check_length(inputs, group.size(), "input_tensor_list")
    received, sent = reals(outputs), reals(inputs)
    own = [received[group.rank()]]
    check_same_size(own, sent[group.rank()], "output_tensor_list of this rank")
    return _exchange(group, "all_to_all", received, sent, received, async_op)


def _exchange(
    group: BaseGroup,
    kind: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    result: list[torch.Tensor],
    async_op: bool,
) -> Work | None:
    calls = []
    for peer, (out, sent) in enumerate(zip(outputs, inputs, strict=True)):
        calls += [Call("send", sent, peer), Call("recv", out, peer)]
    return group.issue(OperationRecord(kind, inputs[0], calls, result, async_op))


def all_to_all_single(
    group: BaseGroup,
    output: torch.Tensor,
    input_: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send each rank its part of a tensor, and receive one from each rank.

    Equal parts are one ncclAlltoAll; unequal ones are sends and receives.
    """
    check_same_dtype([output, input_])
    out, sent = real(output), real(input_)
    size, rank = group.size(), group.rank()
    equal = not output_split_sizes and not input_split_sizes
    if equal and out.numel() == sent.numel() and sent.numel() % size == 0:
        _check_splits(output, None, size, "output")
        _check_splits(input_, None, size, "input")
        calls = [Call("all_to_all", sent, out=out)]
        return group.issue(OperationRecord("all_to_all_single", sent, calls, [output], async_op))
    outputs = _split(out, output_split_sizes, size, "output")
    inputs = _split(sent, input_split_sizes, size, "input")
    check_same_size([outputs[rank]], inputs[rank], "output from this rank")
    return _exchange(group, "all_to_all_single", outputs, inputs, [output], async_op)


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
