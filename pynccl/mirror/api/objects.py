"""Collectives on Python objects, which are transferred as pickles.

The ranks must trust each other, because unpickling can execute arbitrary code. With
``weights_only=True`` it cannot: objects are written by torch.save and read by
``torch.load(weights_only=True)``, which accepts tensors, numbers, strings, containers of them, and
the types of ``torch.serialization.add_safe_globals``. Objects of different ranks may differ in type
and size.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from pynccl.mirror.api.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from pynccl.mirror.group import operations
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.world import (
    _rank_not_in_group,
    check_not_self,
    get_global_rank,
    group_or_default,
    group_rank_of,
    root_of,
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


_T = TypeVar("_T")


def _pickled(value: object, weights_only: bool) -> torch.Tensor:
    if not weights_only:
        return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _unpickled(pickled: torch.Tensor, weights_only: bool) -> Any:
    data = pickled.cpu().numpy().tobytes()
    if weights_only:
        return torch.load(io.BytesIO(data), weights_only=True)
    return pickle.loads(data)


def _packed(
    values: Sequence[object], device: torch.device | str, weights_only: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the concatenated pickles and their sizes in bytes."""
    pickles = [_pickled(value, weights_only) for value in values]
    sizes = torch.tensor([pickled.numel() for pickled in pickles], dtype=torch.long)
    return torch.cat(pickles).to(device), sizes.to(device)


def _buffer_for(
    sizes: torch.Tensor, device: torch.device | str
) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Return a buffer for pickles of these sizes, and its parts."""
    buffer = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=device)
    return buffer, buffer.split(sizes.tolist())


def all_gather_object(
    object_list: list[_T], obj: _T, group: ProcessGroup | None = None, weights_only: bool = False
) -> None:
    """See torch.distributed.all_gather_object.

    torch.distributed has weights_only since torch 2.14.
    """
    if _rank_not_in_group(group):
        warn_outside("all_gather_object")
        return None
    pg = group_or_default(group)
    own, size = _packed([obj], pg.object_device, weights_only)
    sizes = torch.empty(pg.size(), dtype=torch.long, device=pg.object_device)
    operations.all_gather_single(pg, sizes, size)
    _, parts = _buffer_for(sizes, pg.object_device)
    operations.gather_everywhere(pg, "all_gather_object", [list(parts)], [own])
    for rank, part in enumerate(parts):
        object_list[rank] = _unpickled(part, weights_only)
    return None


def gather_object(
    obj: _T,
    object_gather_list: list[_T] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.gather_object.

    torch.distributed has weights_only since torch 2.14.
    """
    pg = group_or_default(group)
    root = root_of(pg, dst, group_dst)
    if _rank_not_in_group(pg):
        warn_outside("gather_object")
        return None
    operations.check_root_list(pg.rank(), root, object_gather_list, "gather_list", "destination")
    device = pg.object_device
    own, size = _packed([obj], device, weights_only)
    gather = functools.partial(operations.move_parts, pg, "gather_object", root=root, gathers=True)
    if object_gather_list is None or pg.rank() != root:
        gather(size, parts=[])
        gather(own, parts=[])
        return None
    sizes = torch.empty(pg.size(), dtype=torch.long, device=device)
    gather(size, parts=list(sizes.split(1)))
    _, parts = _buffer_for(sizes, device)
    gather(own, parts=list(parts))
    for rank, part in enumerate(parts):
        object_gather_list[rank] = _unpickled(part, weights_only)
    return None


def broadcast_object_list(
    object_list: list[_T],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.broadcast_object_list.

    torch.distributed has weights_only since torch 2.14.
    """
    pg = group_or_default(group)
    root = root_of(pg, src, group_src)
    if _rank_not_in_group(pg):
        warn_outside("broadcast_object_list")
        return None
    place = device or pg.object_device
    if pg.rank() == root:
        pickles, sizes = _packed(object_list, place, weights_only)
        operations.broadcast(pg, sizes, root)
        operations.broadcast(pg, pickles, root)
        return None
    sizes = torch.empty(len(object_list), dtype=torch.long, device=place)
    operations.broadcast(pg, sizes, root)
    pickles, parts = _buffer_for(sizes, place)
    operations.broadcast(pg, pickles, root)
    object_list[:] = (_unpickled(part, weights_only) for part in parts)
    return None


def scatter_object_list(
    scatter_object_output_list: list[_T],
    scatter_object_input_list: Sequence[object] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.scatter_object_list.

    torch.distributed has weights_only since torch 2.14.
    """
    pg = group_or_default(group)
    root = root_of(pg, src, group_src)
    if _rank_not_in_group(pg):
        warn_outside("scatter_object_list")
        return None
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
        packed = [_packed([value], device, weights_only) for value in scatter_object_input_list]
        pickles, sizes = map(list, zip(*packed, strict=True))
    size = torch.empty(1, dtype=torch.long, device=device)
    scatter = functools.partial(
        operations.move_parts, pg, "scatter_object_list", root=root, gathers=False
    )
    scatter(size, parts=sizes)
    own = torch.empty(int(size), dtype=torch.uint8, device=device)
    scatter(own, parts=pickles)
    scatter_object_output_list[0] = _unpickled(own, weights_only)
    return None


def send_object_list(
    object_list: Sequence[object],
    dst: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_dst: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.send_object_list.

    use_batch uses the group's communicator, as :func:`batch_isend_irecv` does. torch.distributed
    has weights_only since torch 2.14.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst)
    check_not_self(pg, peer, "destination")
    pickles, sizes = _packed(object_list, device or pg.object_device, weights_only)
    for tensor in (sizes, pickles):
        if use_batch:
            _wait(batch_isend_irecv([P2POp(isend, tensor, group_peer=peer, group=pg)]))
        else:
            send(tensor, group=pg, group_dst=peer)


def recv_object_list(
    object_list: list[_T],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    use_batch: bool = False,
    weights_only: bool = False,
) -> int:
    """See torch.distributed.recv_object_list.

    use_batch uses the group's communicator, as :func:`batch_isend_irecv` does. torch.distributed
    has weights_only since torch 2.14.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, src, group_src)
    check_not_self(pg, peer, "source")

    def receive(tensor: torch.Tensor) -> None:
        if use_batch:
            _wait(batch_isend_irecv([P2POp(irecv, tensor, group_peer=peer, group=pg)]))
        else:
            recv(tensor, group=pg, group_src=peer)

    place = device or pg.object_device
    sizes = torch.empty(len(object_list), dtype=torch.long, device=place)
    receive(sizes)
    pickles, parts = _buffer_for(sizes, place)
    receive(pickles)
    object_list[:] = (_unpickled(part, weights_only) for part in parts)
    return get_global_rank(pg, peer)


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()
