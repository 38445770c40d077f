"""Point to point: send, recv, isend, irecv, and batches of them.

Tensors are contiguous, of any shape, of a dtype that NCCL has, on the devices of the group's
backends. The sender's and the receiver's tensor have the same number of elements and dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from pynccl import _C
from pynccl._C import P2POp
from pynccl.mirror.api.coalescing import _coalescing_manager
from pynccl.mirror.base.checks import check_tensor
from pynccl.mirror.group import p2p
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import (
    _rank_not_in_group,
    check_not_self,
    get_global_rank,
    group_or_default,
    group_rank_of,
    warn_outside,
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
    """Check the arguments of a P2POp, and complete them."""
    if op is not isend and op is not irecv:
        raise ValueError("Invalid ``op``. Expected ``op`` to be ``isend`` or ``irecv``.")
    check_tensor(tensor, "tensor")
    pg = group_or_default(group)
    rank = group_rank_of(pg, peer, group_peer)
    return op, tensor, get_global_rank(pg, rank) if peer is None else peer, pg, tag, rank


P2POp.__signature__ = inspect.signature(_arguments).replace(return_annotation="P2POp")


def _source(pg: ProcessGroup, src: int | None, group_src: int | None) -> int:
    """The rank in the group to receive from."""
    if src is None and group_src is None:
        return p2p.source_in(pg)
    return group_rank_of(pg, src, group_src)


@_C.fast
def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Begin to send a tensor to one rank: torch.distributed.isend, ncclSend.

    Args:
        tensor: the data; not to be changed before the work was waited for.
        dst: the global rank of the destination, not this one.
        group: the group; None is the default group.
        tag: ignored, as by torch's NCCL backend: sends to one rank arrive in their order.
        group_dst: the rank of the destination in the group, instead of dst.

    Returns:
        The Work; None where this rank is not in the group.

    Raises:
        TypeError: tensor is not a tensor.
        ValueError: both or neither of dst and group_dst are given, the destination is this rank or
            not in the group, the tensor is not contiguous or its dtype is not NCCL's, or there is
            no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst)
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(pg):
        warn_outside("isend")
        return None
    return p2p.begin(pg, True, tensor, peer)


@_C.fast
def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Begin to receive a tensor from one rank: torch.distributed.irecv, ncclRecv.

    Args:
        tensor: the output; not to be used before the work was waited for.
        src: the global rank of the source; None, without group_src, is any: in a group of two
            ranks only.
        group: the group; None is the default group.
        tag: ignored, as by torch's NCCL backend: sends of one rank arrive in their order.
        group_src: the rank of the source in the group, instead of src.

    Returns:
        The Work; None where this rank is not in the group.

    Raises:
        TypeError: tensor is not a tensor.
        ValueError: both src and group_src are given, the source is this rank or not in the group,
            or any in a group of more than two; the tensor is not contiguous or its dtype is not
            NCCL's; or there is no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed.
    """
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(group):
        warn_outside("irecv")
        return None
    pg = group_or_default(group)
    return p2p.begin(pg, False, tensor, _source(pg, src, group_src))


@_C.fast
def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to one rank: torch.distributed.send, ncclSend.

    Args:
        tensor: the data.
        dst: the global rank of the destination, not this one.
        group: the group; None is the default group.
        tag: ignored, as by torch's NCCL backend.
        group_dst: the rank of the destination in the group, instead of dst.

    Returns:
        None.

    Raises:
        TypeError: tensor is not a tensor.
        ValueError: both or neither of dst and group_dst are given, the destination is this rank or
            not in the group, this rank is not in it, the tensor is not contiguous or its dtype is
            not NCCL's, or there is no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst)
    check_not_self(pg, peer, "destination")
    check_tensor(tensor, "tensor")
    p2p.finish(pg, True, tensor, peer)


@_C.fast
def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from one rank: torch.distributed.recv, ncclRecv.

    Args:
        tensor: the output.
        src: the global rank of the source, not this one; None, without group_src, is any: in a
            group of two ranks only.
        group: the group; None is the default group.
        tag: ignored, as by torch's NCCL backend.
        group_src: the rank of the source in the group, instead of src.

    Returns:
        The global rank of the source, -1 where this rank is not in the group.

    Raises:
        TypeError: tensor is not a tensor.
        ValueError: both src and group_src are given, the source is this rank or not in the group,
            or any in a group of more than two; the tensor is not contiguous or its dtype is not
            NCCL's; or there is no default group.
        RuntimeError: no backend of the group is for the tensor's device.
        DistBackendError: NCCL failed, or the operation took longer than the group's timeout.
    """
    check_tensor(tensor, "tensor")
    if _rank_not_in_group(group):
        warn_outside("irecv")
        return -1
    pg = group_or_default(group)
    peer = _source(pg, src, group_src)
    if src is None:
        check_not_self(pg, peer, "source")
    p2p.finish(pg, False, tensor, peer)
    return get_global_rank(pg, peer) if src is None else src


@_C.fast
def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Begin several sends and receives as one, in any order: torch.distributed.batch_isend_irecv.

    It is one NCCL group (ncclGroupStart, ncclGroupEnd) on the communicator of the group. Where it
    is the first operation of its group, all ranks of the group must take part.

    Args:
        p2p_op_list: the operations, all of the same group. Those from one rank to one other match
            in their order.

    Returns:
        One Work for all of them, in a list; none, with warnings, where this rank is not in the
        group.

    Raises:
        ValueError: the list is not one of P2POps of one group, a peer is out of range, or a tensor
            is not contiguous or its dtype is not NCCL's.
        IndexError: the list is empty.
        RuntimeError: no backend of the group is for the tensors' device.
        DistBackendError: NCCL failed.
    """
    group = _checked_group(p2p_op_list)
    if _rank_not_in_group(group):
        for p2p_op in p2p_op_list:
            warn_outside(p2p_op.op.__name__)
        return []
    with _coalescing_manager(group, p2p_op_list[0].tensor.device, async_ops=True) as manager:
        for p2p_op in p2p_op_list:
            p2p.begin(group, p2p_op.op is isend, p2p_op.tensor, p2p_op.group_peer)
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
