"""Point to point: send, recv, isend, irecv, and batches of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pynccl.mirror.checks import check_tensor, real
from pynccl.mirror.coalescing import _coalescing_manager
from pynccl.mirror.pair import Transfer
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
    _rank_not_in_group,
    get_global_rank,
    get_rank,
    group_or_default,
    group_rank_of,
    warn_outside,
)
from pynccl.mirror.work import Work

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


class P2POp:
    """One of the operations of :func:`batch_isend_irecv`.

    Args:
        op: :func:`isend` or :func:`irecv`.
        tensor: what to send, or where to receive.
        peer: the other side's global rank.
        group: the group; None is the default one.
        tag: ignored, as by torch's NCCL backend.
        group_peer: the other side's rank in the group, instead of peer.
    """

    def __init__(
        self,
        op: Callable,
        tensor: torch.Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ):
        self.op = op
        self.tensor = tensor
        self.group = group_or_default(group)
        self.group_peer = group_rank_of(self.group, peer, group_peer)
        self.peer = get_global_rank(self.group, self.group_peer) if peer is None else peer
        self.tag = tag

    def __new__(
        cls,
        op: Callable,
        tensor: torch.Tensor,
        peer: int | None = None,
        group: ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ):
        if op is not isend and op is not irecv:
            raise ValueError("Invalid ``op``. Expected ``op`` to be ``isend`` or ``irecv``.")
        check_tensor(tensor, "tensor")
        return object.__new__(cls)

    def __repr__(self) -> str:
        own = get_rank(self.group)
        src, dst = (own, self.group_peer) if self.op is isend else (self.group_peer, own)
        return (
            f"P2POp({self.op.__name__} pg={self.group.group_name}, group_src={src}, "
            f"group_dst={dst},  {self.tensor.shape}, {self.tensor.dtype})"
        )


def _send(pg: ProcessGroup, tensor: torch.Tensor, peer: int) -> Transfer:
    _refuse_self(pg, peer, "isend")
    sent = real(tensor)
    return Transfer(
        "send", True, tensor, lambda comm, stream: comm.send(sent, 1 - comm.rank, stream=stream)
    )


def _recv(pg: ProcessGroup, tensor: torch.Tensor, peer: int) -> Transfer:
    _refuse_self(pg, peer, "irecv")
    out = real(tensor)
    return Transfer(
        "recv",
        False,
        tensor,
        lambda comm, stream: comm.recv(out, 1 - comm.rank, stream=stream),
        peer,
    )


def _refuse_self(pg: ProcessGroup, peer: int, name: str) -> None:
    if not 0 <= peer < pg.size():
        raise ValueError(f"{name}: {peer} is no rank of a group of {pg.size()}")
    if peer == pg.rank():
        raise ValueError(
            f"{name}: rank {peer} of the group is this one; NCCL moves data from a rank to itself "
            "only where send and receive are issued together: pass both to batch_isend_irecv"
        )


def _only_source(pg: ProcessGroup) -> int:
    """The rank that a receive from any source receives from."""
    if pg.size() != 2:
        raise ValueError(
            "recv from any source: NCCL cannot wait for whichever rank sends first; name the "
            f"source (only in a group of two ranks it is known, this one has {pg.size()})"
        )
    return 1 - pg.rank()


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
    if pg.batch is not None and pg.batch.takes("isend"):
        sent = real(tensor)
        return pg.batch.add(
            "isend", tensor, lambda comm, stream: comm.send(sent, peer, stream=stream), [], False
        )
    return pg.pair(tensor.device, peer).start(_send(pg, tensor, peer))


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
    if src is None and group_src is None:
        peer = _only_source(pg)
    else:
        peer = group_rank_of(pg, src, group_src)
    if pg.batch is not None and pg.batch.takes("irecv"):
        out = real(tensor)
        return pg.batch.add(
            "irecv",
            tensor,
            lambda comm, stream: comm.recv(out, peer, stream=stream),
            [tensor],
            False,
        )
    return pg.pair(tensor.device, peer).start(_recv(pg, tensor, peer))


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
    if pg.batch is not None:
        isend(tensor, group=pg, group_dst=peer)
        return
    pg.pair(tensor.device, peer).call(_send(pg, tensor, peer))


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
    if src is None and group_src is None:
        peer = _only_source(pg)
    else:
        peer = group_rank_of(pg, src, group_src)
    if src is None:
        _check_not_self(pg, peer, "source")
    if pg.batch is not None:
        irecv(tensor, group=pg, group_src=peer)
    else:
        pg.pair(tensor.device, peer).call(_recv(pg, tensor, peer))
    return get_global_rank(pg, peer) if src is None else src


def _check_not_self(pg: ProcessGroup, rank: int, kind: str) -> None:
    if not _rank_not_in_group(pg) and pg.rank() == rank:
        raise ValueError(
            f"Invalid {kind} rank: {kind} rank should not be the same as the rank of the current "
            "process."
        )


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
            peer = {"group_dst" if p2p_op.op is isend else "group_src": p2p_op.group_peer}
            p2p_op.op(p2p_op.tensor, group=p2p_op.group, tag=p2p_op.tag, **peer)
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
