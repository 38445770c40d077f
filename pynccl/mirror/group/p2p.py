"""Sends and receives between two ranks of a group, in and outside batches."""

from __future__ import annotations

import torch

from pynccl.mirror.base.checks import real
from pynccl.mirror.group.base_group import BaseGroup
from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import Work

__all__ = ["begin", "finish", "source_in"]


def begin(group: BaseGroup, sends: bool, tensor: torch.Tensor, peer: int) -> Work | None:
    """Start a send or a receive (isend, irecv), or add it to the current batch.

    Args:
        group: the group.
        sends: whether to send.
        tensor: the tensor to send or receive into.
        peer: the peer's rank in the group.

    Returns:
        The Work; None in a batch.

    Raises:
        ValueError: outside a batch, peer is this rank or is not in the group.
    """
    kind = "isend" if sends else "irecv"
    batch = group._batch
    if batch is not None and batch.takes(kind):
        calls = [Call("send" if sends else "recv", real(tensor), peer)]
        return batch.add(OperationRecord(kind, tensor, calls, [] if sends else [tensor]))
    return _transfer(group, sends, tensor, peer, async_op=True)


def finish(group: BaseGroup, sends: bool, tensor: torch.Tensor, peer: int) -> None:
    """Run a send or a receive (send, recv). Arguments and errors are those of begin()."""
    if group._batch is not None:
        begin(group, sends, tensor, peer)
    else:
        _transfer(group, sends, tensor, peer, async_op=False)


def _transfer(
    group: BaseGroup, sends: bool, tensor: torch.Tensor, peer: int, *, async_op: bool
) -> Work | None:
    _check_peer(group, peer, "isend" if sends else "irecv")
    return group.transfer("send" if sends else "recv", tensor, peer, async_op=async_op)


def _check_peer(group: BaseGroup, peer: int, name: str) -> None:
    if not 0 <= peer < group.size():
        raise ValueError(f"{name}: rank {peer} is out of range for a group of size {group.size()}")
    if peer == group.rank():
        raise ValueError(
            f"{name}: rank {peer} of the group is this rank; NCCL transfers data from a rank to "
            "itself only if send and receive are grouped: pass both to batch_isend_irecv"
        )


def source_in(group: BaseGroup) -> int:
    """Return the source of a receive from any source.

    Raises:
        ValueError: the group does not have two ranks.
    """
    if group.size() != 2:
        raise ValueError(
            "recv without a source: NCCL has no receive from any source; pass the "
            f"source (it is implied only in a group of two ranks; this one has {group.size()})"
        )
    return 1 - group.rank()
