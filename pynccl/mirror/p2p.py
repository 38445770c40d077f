"""Point to point: send, recv, isend, irecv, and batches of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from pynccl import _C, nccl
from pynccl._C import P2POp
from pynccl.mirror.channel import Issue
from pynccl.mirror.checks import check_tensor, real
from pynccl.mirror.coalescing import _coalescing_manager
from pynccl.mirror.pair import Transfer
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
    _rank_not_in_group,
    get_global_rank,
    group_or_default,
    group_rank_of,
    warn_outside,
)
from pynccl.mirror.work import Work

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


@_C.complete_p2p_ops
def _arguments(
    op: Callable,
    tensor: torch.Tensor,
    peer: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_peer: int | None = None,
):
    """Check the arguments of a P2POp, and complete them."""
    if op is not isend and op is not irecv:
        raise ValueError("Invalid ``op``. Expected ``op`` to be ``isend`` or ``irecv``.")
    check_tensor(tensor, "tensor")
    pg = group_or_default(group)
    rank = group_rank_of(pg, peer, group_peer)
    return op, tensor, get_global_rank(pg, rank) if peer is None else peer, pg, tag, rank


P2POp.__signature__ = inspect.signature(_arguments)


def _issue(sends: bool, tensor: torch.Tensor, peer: int | None = None) -> Issue:
    """Moves a tensor; without a peer between the two ranks of the communicator."""
    moved = real(tensor)

    def issue(comm: nccl.Communicator, stream: int | None) -> None:
        call = comm.send if sends else comm.recv
        call(moved, 1 - comm.rank if peer is None else peer, stream=stream)

    return issue


def _transfer(pg: ProcessGroup, sends: bool, tensor: torch.Tensor, peer: int) -> Transfer:
    """What a pair is given."""
    _refuse_self(pg, peer, "isend" if sends else "irecv")
    issue = _issue(sends, tensor)
    return Transfer("send" if sends else "recv", sends, tensor, issue, None if sends else peer)


def _begin(pg: ProcessGroup, sends: bool, tensor: torch.Tensor, peer: int) -> Work | None:
    """What isend and irecv do, in a batch and outside."""
    name = "isend" if sends else "irecv"
    if pg._batch is not None and pg._batch.takes(name):
        result = [] if sends else [tensor]
        return pg._batch.add(name, tensor, _issue(sends, tensor, peer), result, False)
    return pg.pair(tensor.device, peer).start(_transfer(pg, sends, tensor, peer))


def _finish(pg: ProcessGroup, sends: bool, tensor: torch.Tensor, peer: int) -> None:
    """What send and recv do."""
    if pg._batch is not None:
        _begin(pg, sends, tensor, peer)
    else:
        pg.pair(tensor.device, peer).call(_transfer(pg, sends, tensor, peer))


def _refuse_self(pg: ProcessGroup, peer: int, name: str) -> None:
    if not 0 <= peer < pg.size():
        raise ValueError(f"{name}: {peer} is no rank of a group of {pg.size()}")
    if peer == pg.rank():
        raise ValueError(
            f"{name}: rank {peer} of the group is this one; NCCL moves data from a rank to itself "
            "only where send and receive are issued together: pass both to batch_isend_irecv"
        )


def _source(pg: ProcessGroup, src: int | None, group_src: int | None) -> int:
    """The rank in the group to receive from."""
    if src is not None or group_src is not None:
        return group_rank_of(pg, src, group_src)
    if pg.size() != 2:
        raise ValueError(
            "recv from any source: NCCL cannot wait for whichever rank sends first; name the "
            f"source (only in a group of two ranks it is known, this one has {pg.size()})"
        )
    return 1 - pg.rank()


@_C.fast
def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Begin to send a tensor to one rank (ncclSend).

    Args:
        tensor: what to send; not to be changed before the work was waited for.
        dst: the destination's global rank.
        group: the group; None is the default one.
        tag: ignored, as by torch's NCCL backend: sends to one rank arrive in their order.
        group_dst: the destination's rank in the group, instead of dst.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst)
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(pg):
        warn_outside("isend")
        return None
    return _begin(pg, True, tensor, peer)


@_C.fast
def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Begin to receive a tensor from one rank (ncclRecv).

    Args:
        tensor: where to receive; not to be used before the work was waited for.
        src: the source's global rank; None, without group_src, is any: in a group of two only.
        group: the group; None is the default one.
        tag: ignored, as by torch's NCCL backend: sends of one rank arrive in their order.
        group_src: the source's rank in the group, instead of src.
    """
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(group):
        warn_outside("irecv")
        return None
    pg = group_or_default(group)
    return _begin(pg, False, tensor, _source(pg, src, group_src))


@_C.fast
def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to one rank (ncclSend).

    Args:
        tensor: what to send.
        dst: the destination's global rank, not this one.
        group: the group; None is the default one.
        tag: ignored, as by torch's NCCL backend.
        group_dst: the destination's rank in the group, instead of dst.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst)
    _check_not_self(pg, peer, "destination")
    check_tensor(tensor, "tensor")
    _finish(pg, True, tensor, peer)


@_C.fast
def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from one rank (ncclRecv).

    Args:
        tensor: where to receive.
        src: the source's global rank; None, without group_src, is any: in a group of two only.
        group: the group; None is the default one.
        tag: ignored, as by torch's NCCL backend.
        group_src: the source's rank in the group, instead of src.

    Returns:
        The source's global rank, -1 where this rank is not in the group.
    """
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(group):
        warn_outside("irecv")
        return -1
    pg = group_or_default(group)
    peer = _source(pg, src, group_src)
    if src is None:
        _check_not_self(pg, peer, "source")
    _finish(pg, False, tensor, peer)
    return get_global_rank(pg, peer) if src is None else src


def _check_not_self(pg: ProcessGroup, rank: int, kind: str) -> None:
    if not _rank_not_in_group(pg) and pg.rank() == rank:
        raise ValueError(
            f"Invalid {kind} rank: {kind} rank should not be the same as the rank of the current "
            "process."
        )


@_C.fast
def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Begin several sends and receives as one, in any order (ncclGroupStart, ncclGroupEnd).

    Where it is the first operation of its group, all ranks of the group must take part.

    Args:
        p2p_op_list: the operations, all of the same group. Those from one rank to one other match
            in their order.

    Returns:
        One work for all of them, in a list.
    """
    group = _checked_group(p2p_op_list)
    with _coalescing_manager(group, p2p_op_list[0].tensor.device, async_ops=True) as manager:
        for p2p_op in p2p_op_list:
            _begin(group, p2p_op.op is isend, p2p_op.tensor, p2p_op.group_peer)
    return manager.works


def _checked_group(p2p_op_list: Any) -> ProcessGroup:
    if not isinstance(p2p_op_list, list) or not all(
        isinstance(p2p_op, P2POp) for p2p_op in p2p_op_list
    ):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to be of type ``P2POp``.")
    group = p2p_op_list[0].group
    if not all(group == p2p_op.group for p2p_op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    return group
