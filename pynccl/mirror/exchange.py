"""All-to-all: every rank sends each rank its own part.

Equal parts of one tensor are one NCCL operation; lists and unequal parts are one group of sends and
receives straight on the user's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pynccl import nccl
from pynccl.mirror.checks import (
    check_length,
    check_same_dtype,
    check_same_size,
    check_tensor,
    check_tensor_list,
    contiguous,
    real,
    reals,
)
from pynccl.mirror.errors import MismatchError
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import member
from pynccl.mirror.work import Work

__all__ = ["all_to_all", "all_to_all_single"]


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op: bool = False):
    """Send the i-th tensor of a list to rank i, and receive one from each.

    Args:
        output_tensor_list: a tensor for each rank, with as many elements as that rank sends here.
        input_tensor_list: a tensor for each rank.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
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
    check_same_size([outputs[pg.rank()]], inputs[pg.rank()], "output_tensor_list of this rank")
    return _exchange(pg, "all_to_all", outputs, inputs, outputs, async_op)


def _exchange(
    pg: ProcessGroup,
    name: str,
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    result: list[torch.Tensor],
    async_op: bool,
) -> Work | None:
    def issue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for peer, (out, sent) in enumerate(zip(outputs, inputs, strict=True)):
                comm.send(sent, peer, stream=stream)
                comm.recv(out, peer, stream=stream)

    return pg.run(name, inputs[0], issue, result, async_op)


def all_to_all_single(
    output,
    input,
    output_split_sizes=None,
    input_split_sizes=None,
    group=None,
    async_op: bool = False,
):
    """Send each rank its part of a tensor, and receive one from each (ncclAlltoAll).

    Args:
        output: the received parts, in the order of ranks.
        input: the parts to send, in the order of ranks.
        output_split_sizes: how much of dimension 0 comes from each rank; None is equal parts.
        input_split_sizes: how much of dimension 0 goes to each rank; None is equal parts.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
    """
    pg = member(group, "all_to_all_single")
    if pg is None:
        return None
    check_tensor(output, "output")
    check_tensor(input, "input")
    check_same_dtype([output, input])
    out, sent = real(output), real(input)
    equal = not output_split_sizes and not input_split_sizes
    if equal and out.numel() == sent.numel() and sent.numel() % pg.size() == 0:
        _check_splits(output, None, pg.size(), "output")
        _check_splits(input, None, pg.size(), "input")
        return pg.run(
            "all_to_all_single",
            sent,
            lambda comm, stream: comm.all_to_all(sent, out=out, stream=stream),
            [output],
            async_op,
        )
    outputs = _split(out, output_split_sizes, pg.size(), "output")
    inputs = _split(sent, input_split_sizes, pg.size(), "input")
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
    """The parts of a tensor, as views."""
    _check_splits(tensor, sizes, ranks, name)
    rows = contiguous(tensor, name) if tensor.dim() else tensor.reshape(1)
    return rows.split(list(sizes) if sizes else [rows.shape[0] // ranks] * ranks)
