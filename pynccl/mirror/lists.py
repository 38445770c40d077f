"""The collectives on lists of tensors, and with unequal parts.

Each is one NCCL group of operations straight on the user's tensors: a gathering is a broadcast from
each rank, a reduce-scatter a reduction to each, everything else sends and receives. Nothing is
copied to or from a flat buffer, and the parts may have different sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from typing_extensions import deprecated

from pynccl import nccl
from pynccl.mirror.checks import (
    check_length,
    check_same_dtype,
    check_same_size,
    check_tensor,
    check_tensor_list,
    real,
    reals,
)
from pynccl.mirror.errors import MismatchError
from pynccl.mirror.operators import ReduceOp, resolve, supports_complex
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
    _rank_not_in_group,
    group_or_default,
    group_rank_of,
    member,
    warn_outside,
)
from pynccl.mirror.work import Work

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_reduce_coalesced",
    "gather",
    "reduce_scatter",
    "scatter",
]


def all_gather(tensor_list, tensor, group=None, async_op=False):
    """Collect the tensors of all ranks in a list, on every rank.

    Args:
        tensor_list: a tensor for each rank, with as many elements as that rank sends.
        tensor: this rank's contribution.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
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
    name: str,
    outputs: list[list[torch.Tensor]],
    inputs: list[torch.Tensor],
    async_op: bool,
) -> Work | None:
    """Broadcast each input from each rank to the output that is for both."""
    for output, own in zip(outputs, inputs, strict=True):
        check_same_size([output[pg.rank()]], own, "the output of this rank")

    def issue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for output, own in zip(outputs, inputs, strict=True):
                for root, out in enumerate(output):
                    sent = own if root == pg.rank() else out
                    comm.broadcast(sent, root, out=out, stream=stream)

    return pg.run(name, inputs[0], issue, list(itertools.chain(*outputs)), async_op)


@deprecated(
    "`torch.distributed.all_gather_coalesced` will be deprecated. If you must use it, "
    "please revisit our documentation later at "
    "https://pytorch.org/docs/main/distributed.html#collective-functions",
    category=FutureWarning,
)
def all_gather_coalesced(
    output_tensor_lists,
    input_tensor_list,
    group=None,
    async_op: bool = False,
):
    """Collect several tensors of all ranks at once.

    Args:
        output_tensor_lists: a list for each rank, with a tensor for each of its inputs.
        input_tensor_list: this rank's contributions.
        group: the group; None is the default one.
        async_op: whether to return a future instead of waiting.
    """
    pg = member(group, "all_gather_coalesced")
    if pg is None:
        return None
    check_tensor_list(input_tensor_list, "input_tensor_list")
    check_same_dtype(input_tensor_list)
    if not isinstance(output_tensor_lists, list):
        raise TypeError("Invalid function argument: output_tensor_lists should be a list")
    for output_tensor_list in output_tensor_lists:
        check_tensor_list(output_tensor_list, "output_tensor_lists")
        check_same_dtype(output_tensor_list)
    check_length(output_tensor_lists, pg.size(), "output_tensor_lists")
    for rank, output_tensor_list in enumerate(output_tensor_lists):
        if len(output_tensor_list) != len(input_tensor_list):
            raise MismatchError(
                f"output_tensor_lists: the list of rank {rank} has {len(output_tensor_list)} "
                f"tensors, must have one for each of the {len(input_tensor_list)} inputs"
            )
    outputs = [reals(of_input) for of_input in zip(*output_tensor_lists, strict=True)]
    work = gather_everywhere(
        pg, "all_gather_coalesced", outputs, reals(input_tensor_list), async_op
    )
    return work.get_future() if work is not None else None


@deprecated(
    "`torch.distributed.all_reduce_coalesced` will be deprecated. If you must "
    "use it, please revisit our documentation later at "
    "https://pytorch.org/docs/main/distributed.html#collective-functions",
    category=FutureWarning,
)
def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op: bool = False):
    """Combine several tensors of all ranks at once, in place.

    Args:
        tensors: this rank's contributions, and the results.
        op: a ReduceOp.
        group: the group; None is the default one.
        async_op: whether to return a future instead of waiting.
    """
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    check_tensor_list(tensors, "tensor")
    check_same_dtype(tensors)
    pg = member(group, "all_reduce_coalesced")
    if pg is None:
        return None
    if any(tensor.is_complex() for tensor in tensors) and not supports_complex(op):
        raise ValueError(f"all_reduce does not support {op} on complex tensors")
    red_op = resolve(op, tensors[0], pg.channel(tensors[0].device))

    def issue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for tensor in tensors:
                comm.all_reduce(tensor, red_op, stream=stream)

    work = pg.run("all_reduce_coalesced", tensors[0], issue, list(tensors), async_op)
    return work.get_future() if work is not None else None


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
):
    """Collect the tensors of all ranks in a list, on one rank.

    Args:
        tensor: this rank's contribution, of the same size on every rank.
        gather_list: on the destination a tensor for each rank; None on the others.
        dst: the destination's global rank; 0 without it and group_dst.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
        group_dst: the destination's rank in the group, instead of dst.
    """
    check_tensor(tensor, "tensor")
    outputs: list[torch.Tensor] = []
    if gather_list:
        check_tensor_list(gather_list, "gather_list")
        outputs = gather_list
    check_same_dtype([tensor, *outputs])
    pg = group_or_default(group)
    if _rank_not_in_group(pg):
        return warn_outside("gather")
    root = group_rank_of(pg, 0 if dst is None and group_dst is None else dst, group_dst)
    check_gather_list(pg.rank(), root, outputs)
    if outputs:
        check_length(outputs, pg.size(), "gather_list")
        check_same_size(outputs, tensor, "gather_list")
    own, parts = real(tensor), reals(outputs)
    return move_parts(pg, "gather", own, parts, root, gathers=True, async_op=async_op)


def check_gather_list(rank: int, root: int, outputs: Sequence[object] | None) -> None:
    """Refuse a list where there must be none, and none where there must be one.

    Raises:
        ValueError: it is so.
    """
    if rank == root and not outputs:
        raise ValueError("Argument ``gather_list`` must be specified on destination rank.")
    if rank != root and outputs:
        raise ValueError("Argument ``gather_list`` must NOT be specified on non-destination ranks.")


def move_parts(
    pg: ProcessGroup,
    name: str,
    own: torch.Tensor,
    parts: list[torch.Tensor],
    root: int,
    *,
    gathers: bool,
    async_op: bool = False,
) -> Work | None:
    """Move each rank's own part to the root, which has all of them, or from it.

    Parts may differ in size; on ranks that are not the root there are none.
    """

    def issue(comm: nccl.Communicator, stream: int | None) -> None:
        of_own, of_parts = (comm.send, comm.recv) if gathers else (comm.recv, comm.send)
        with nccl.group():
            for peer, part in enumerate(parts):
                of_parts(part, peer, stream=stream)
            of_own(own, root, stream=stream)

    return pg.run(name, own, issue, parts if gathers else [own], async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
):
    """Send each rank its tensor of one rank's list.

    Args:
        tensor: where to put this rank's.
        scatter_list: on the source a tensor for each rank, all of one size; None on the others.
        src: the source's global rank; 0 without it and group_src.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
        group_src: the source's rank in the group, instead of src.
    """
    check_tensor(tensor, "tensor")
    inputs: list[torch.Tensor] = []
    if scatter_list:
        check_tensor_list(scatter_list, "scatter_list")
        inputs = scatter_list
    check_same_dtype([tensor, *inputs])
    pg = group_or_default(group)
    root = group_rank_of(pg, 0 if src is None and group_src is None else src, group_src)
    if _rank_not_in_group(pg):
        return warn_outside("scatter")
    if pg.rank() == root and not inputs:
        raise ValueError("Argument ``scatter_list`` must be specified on source rank.")
    if pg.rank() != root and inputs:
        raise ValueError("Argument ``scatter_list`` must NOT be specified on non-source ranks.")
    if inputs:
        check_length(inputs, pg.size(), "scatter_list")
        check_same_size(inputs, tensor, "scatter_list")
    own, parts = real(tensor), reals(inputs)
    return move_parts(pg, "scatter", own, parts, root, gathers=False, async_op=async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op: bool = False):
    """Combine lists of tensors of all ranks; rank i gets the combination of the i-th.

    Args:
        output: where to put this rank's.
        input_list: a tensor for each rank.
        op: a ReduceOp.
        group: the group; None is the default one.
        async_op: whether to return a Work instead of waiting.
    """
    check_tensor(output, "output")
    check_tensor_list(input_list, "input_list")
    check_same_dtype([output, *input_list])
    pg = member(group, "reduce_scatter")
    if pg is None:
        return None
    check_length(input_list, pg.size(), "input_list")
    check_same_size([input_list[pg.rank()]], output, "the input for this rank")
    red_op = resolve(op, output, pg.channel(output.device))

    def issue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for root, sent in enumerate(input_list):
                out = output if root == pg.rank() else None
                comm.reduce(sent, root, red_op, out=out, stream=stream)

    return pg.run("reduce_scatter", output, issue, [output], async_op)
