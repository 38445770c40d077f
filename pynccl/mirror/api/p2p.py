"""Point-to-point operations: send, recv, isend, irecv, and batches of them.

Tensors must be contiguous, of a dtype that NCCL supports, and on a device of the group's backends.
Sender and receiver must use the same number of elements and the same dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from pynccl import _C, nccl
from pynccl._C import P2POp
from pynccl.mirror.base.checks import check_tensor, real
from pynccl.mirror.group.comm_stream import Call
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import (
    check_not_self,
    get_global_rank,
    group_or_default,
    group_rank_of,
    member,
)

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


@_C.complete_p2p_ops
def _arguments(
    op: Callable[..., Work | None],
    tensor: torch.Tensor,
    peer: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_peer: int | None = None,
):
    """Check and complete the arguments of a P2POp."""
    if op is not isend and op is not irecv:
        raise ValueError("Invalid ``op``. Expected ``op`` to be ``isend`` or ``irecv``.")
    check_tensor(tensor, "tensor")
    pg = group_or_default(group)
    rank = group_rank_of(pg, peer, group_peer, "peer")
    return op, tensor, get_global_rank(pg, rank) if peer is None else peer, pg, tag, rank


P2POp.__signature__ = inspect.signature(_arguments).replace(return_annotation="P2POp")


def _source(pg: ProcessGroup, src: int | None, group_src: int | None) -> int:
    """Return the group rank to receive from; it is implied in a group of two."""
    if src is not None or group_src is not None:
        return group_rank_of(pg, src, group_src, "src")
    if pg.size() != 2:
        raise ValueError(
            "src: NCCL cannot receive from any source; pass src or group_src, which can be omitted "
            f"only in a group of two ranks; this group has {pg.size()}"
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
    """See torch.distributed.isend (ncclSend). tag is ignored, as by torch's NCCL backend."""
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst, "dst")
    check_tensor(tensor, "tensor")
    if member(pg, "isend") is None:
        return None
    return pg.transfer(True, tensor, peer, async_op=True)


@_C.fast
def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """See torch.distributed.irecv (ncclRecv).

    tag is ignored, as by torch's NCCL backend. Omitting the source raises ValueError, except in a
    group of two ranks.
    """
    check_tensor(tensor, "tensor")
    pg = member(group, "irecv")
    if pg is None:
        return None
    return pg.transfer(False, tensor, _source(pg, src, group_src), async_op=True)


@_C.fast
def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """See torch.distributed.send (ncclSend). tag is ignored, as by torch's NCCL backend."""
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst, "dst")
    check_not_self(pg, peer, "dst")
    check_tensor(tensor, "tensor")
    pg.transfer(True, tensor, peer)


@_C.fast
def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """See torch.distributed.recv (ncclRecv).

    tag is ignored, as by torch's NCCL backend. Omitting the source raises ValueError, except in a
    group of two ranks.
    """
    check_tensor(tensor, "tensor")
    pg = member(group, "irecv")  # as torch names it
    if pg is None:
        return -1
    peer = _source(pg, src, group_src)
    if src is None:
        check_not_self(pg, peer, "src")
    pg.transfer(False, tensor, peer)
    return get_global_rank(pg, peer) if src is None else src


@_C.fast
def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """See torch.distributed.batch_isend_irecv.

    Issued as one NCCL group on the group's communicator. If it is the group's first operation, all
    its ranks must take part. Returns a list with one Work for all operations.
    """
    group = _checked_group(p2p_op_list)
    if None in [member(group, p2p_op.op.__name__) for p2p_op in p2p_op_list]:
        return []
    operations = [(op.op is isend, real(op.tensor), op.group_peer) for op in p2p_op_list]

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        with nccl.group():
            for sends, tensor, peer in operations:
                (comm.send if sends else comm.recv)(tensor, peer, stream=stream)

    kind = f"coalesced {', '.join(sorted({op.op.__name__ for op in p2p_op_list}))}"
    received = [op.tensor for op in p2p_op_list if op.op is irecv]
    tensors = {"p2p_op_list": [op.tensor for op in p2p_op_list]}
    call = Call(kind, p2p_op_list[0].tensor, enqueue, received, tensors, async_op=True)
    work = group.issue(call)
    return [] if work is None else [work]


def _checked_group(p2p_op_list: Any) -> ProcessGroup:
    if not isinstance(p2p_op_list, list) or not all(
        isinstance(p2p_op, P2POp) for p2p_op in p2p_op_list
    ):
        raise ValueError("Invalid ``p2p_op_list``. Each op is expected to be of type ``P2POp``.")
    if not p2p_op_list:
        raise ValueError("Invalid ``p2p_op_list``. Expected at least one ``P2POp``.")
    group = p2p_op_list[0].group
    if not all(group == p2p_op.group for p2p_op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    return group
