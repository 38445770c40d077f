"""Collectives on Python objects, which travel as their pickles.

Only between ranks that trust each other: a pickle can make its reader run anything.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from pynccl.mirror.collectives import all_gather_single, broadcast
from pynccl.mirror.lists import check_gather_list, gather_everywhere, move_parts
from pynccl.mirror.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import (
    _rank_not_in_group,
    get_global_rank,
    group_or_default,
    group_rank_of,
    warn_outside,
)

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def _pickled(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpickled(pickled: torch.Tensor) -> Any:
    return pickle.loads(pickled.cpu().numpy().tobytes())


def _packed(values: Sequence[Any], device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pickles one after the other, and their sizes."""
    pickles = [_pickled(value) for value in values]
    sizes = torch.tensor([pickled.numel() for pickled in pickles], dtype=torch.long)
    return torch.cat(pickles).to(device), sizes.to(device)


def _room_for(
    sizes: torch.Tensor, device: torch.device | str
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """A buffer for pickles of these sizes, and its parts."""
    buffer = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=device)
    return buffer, buffer.split(sizes.tolist())


def all_gather_object(object_list, obj, group=None):
    """Collect an object of every rank in a list, on every rank.

    Args:
        object_list: a list of as many elements as there are ranks, which are replaced.
        obj: this rank's object.
        group: the group; None is the default one.
    """
    if _rank_not_in_group(group):
        return warn_outside("all_gather_object")
    pg = group_or_default(group)
    own, size = _packed([obj], pg.object_device)
    sizes = torch.empty(pg.size(), dtype=torch.long, device=pg.object_device)
    all_gather_single(sizes, size, group=pg)
    _, parts = _room_for(sizes, pg.object_device)
    gather_everywhere(pg, "all_gather_object", [list(parts)], [own], False)
    for rank, part in enumerate(parts):
        object_list[rank] = _unpickled(part)
    return None


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    group_dst: int | None = None,
):
    """Collect an object of every rank in a list, on one rank.

    Args:
        obj: this rank's object.
        object_gather_list: on the destination a list of as many elements as there are ranks, which
            are replaced; None on the others.
        dst: the destination's global rank; 0 without it and group_dst.
        group: the group; None is the default one.
        group_dst: the destination's rank in the group, instead of dst.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, 0 if dst is None and group_dst is None else dst, group_dst)
    if _rank_not_in_group(pg):
        return warn_outside("gather_object")
    check_gather_list(pg.rank(), root, object_gather_list)
    device = pg.object_device
    own, size = _packed([obj], device)
    gather = functools.partial(move_parts, pg, "gather_object", root=root, gathers=True)
    if object_gather_list is None or pg.rank() != root:
        gather(size, parts=[])
        gather(own, parts=[])
        return None
    sizes = torch.empty(pg.size(), dtype=torch.long, device=device)
    gather(size, parts=list(sizes.split(1)))
    _, parts = _room_for(sizes, device)
    gather(own, parts=list(parts))
    for rank, part in enumerate(parts):
        object_gather_list[rank] = _unpickled(part)
    return None


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
):
    """Copy one rank's list of objects to every rank.

    Args:
        object_list: on the source the objects; on the others a list of the same length, whose
            elements are replaced.
        src: the source's global rank; 0 without it and group_src.
        group: the group; None is the default one.
        device: where the pickles travel; None chooses by the group's backends.
        group_src: the source's rank in the group, instead of src.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, 0 if src is None and group_src is None else src, group_src)
    if _rank_not_in_group(pg):
        return warn_outside("broadcast_object_list")
    place = device or pg.object_device
    if pg.rank() == root:
        pickles, sizes = _packed(object_list, place)
        broadcast(sizes, group=pg, group_src=root)
        broadcast(pickles, group=pg, group_src=root)
        return None
    sizes = torch.empty(len(object_list), dtype=torch.long, device=place)
    broadcast(sizes, group=pg, group_src=root)
    pickles, parts = _room_for(sizes, place)
    broadcast(pickles, group=pg, group_src=root)
    object_list[:] = map(_unpickled, parts)
    return None


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    group_src: int | None = None,
):
    """Send each rank its object of one rank's list.

    Args:
        scatter_object_output_list: its first element is replaced by this rank's object.
        scatter_object_input_list: on the source an object for each rank.
        src: the source's global rank; 0 without it and group_src.
        group: the group; None is the default one.
        group_src: the source's rank in the group, instead of src.
    """
    pg = group_or_default(group)
    root = group_rank_of(pg, 0 if src is None and group_src is None else src, group_src)
    if _rank_not_in_group(pg):
        return warn_outside("scatter_object_list")
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError(
            "Expected argument scatter_object_output_list to be a list of size at least 1."
        )
    device = pg.object_device
    pickles: list[torch.Tensor] = []
    sizes: list[torch.Tensor] = []
    if pg.rank() == root:
        if scatter_object_input_list is None:
            raise ValueError("source rank must provide non-None scatter_object_input_list")
        if len(scatter_object_input_list) != pg.size():
            raise ValueError(
                f"scatter_object_input_list: has {len(scatter_object_input_list)} objects, must "
                f"have one for each of the {pg.size()} ranks"
            )
        packed = [_packed([value], device) for value in scatter_object_input_list]
        pickles, sizes = map(list, zip(*packed, strict=True))
    size = torch.empty(1, dtype=torch.long, device=device)
    scatter = functools.partial(move_parts, pg, "scatter_object_list", root=root, gathers=False)
    scatter(size, parts=sizes)
    own = torch.empty(int(size), dtype=torch.uint8, device=device)
    scatter(own, parts=pickles)
    scatter_object_output_list[0] = _unpickled(own)
    return None


def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
):
    """Send a list of objects to one rank.

    Args:
        object_list: the objects.
        dst: the destination's global rank, not this one.
        group: the group; None is the default one.
        device: where the pickles travel; None chooses by the group's backends.
        group_dst: the destination's rank in the group, instead of dst.
        use_batch: whether to use the group's communicator, as batch_isend_irecv does.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst)
    if _rank_not_in_group(pg):
        return warn_outside("send_object_list")
    if peer == pg.rank():
        raise ValueError(
            "Invalid destination rank: destination rank should not be the same as the rank of the "
            "current process."
        )
    pickles, sizes = _packed(object_list, device or pg.object_device)
    for tensor in (sizes, pickles):
        if use_batch:
            _wait(batch_isend_irecv([P2POp(isend, tensor, group_peer=peer, group=pg)]))
        else:
            send(tensor, group=pg, group_dst=peer)
    return None


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
):
    """Receive a list of objects from one rank.

    Args:
        object_list: a list of as many elements as were sent, which are replaced.
        src: the source's global rank, not this one.
        group: the group; None is the default one.
        device: where the pickles travel; None chooses by the group's backends.
        group_src: the source's rank in the group, instead of src.
        use_batch: whether to use the group's communicator, as batch_isend_irecv does.

    Returns:
        The source's global rank, -1 where this rank is not in the group.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, src, group_src)
    if _rank_not_in_group(pg):
        warn_outside("recv_object_list")
        return -1
    if peer == pg.rank():
        raise ValueError(
            "Invalid source rank: source rank should not be the same as the rank of the current "
            "process."
        )

    def receive(tensor: torch.Tensor) -> None:
        if use_batch:
            _wait(batch_isend_irecv([P2POp(irecv, tensor, group_peer=peer, group=pg)]))
        else:
            recv(tensor, group=pg, group_src=peer)

    place = device or pg.object_device
    sizes = torch.empty(len(object_list), dtype=torch.long, device=place)
    receive(sizes)
    pickles, parts = _room_for(sizes, place)
    receive(pickles)
    object_list[:] = map(_unpickled, parts)
    return get_global_rank(pg, peer)


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()
