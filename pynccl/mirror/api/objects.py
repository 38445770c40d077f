"""Collectives on Python objects, which are transferred as pickles.

The ranks must trust each other, because unpickling can execute arbitrary code. With
``weights_only=True`` it cannot: objects are written by torch.save and read by
``torch.load(weights_only=True)``, which accepts tensors, numbers, strings, containers of them, and
the types of ``torch.serialization.add_safe_globals``. Objects of different ranks may differ in type
and size.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from pynccl._internal.arguments import wrong_type
from pynccl.mirror.api.collectives import all_gather_single, broadcast
from pynccl.mirror.api.lists import check_root_list, from_root, gather_everywhere, to_root
from pynccl.mirror.api.p2p import P2POp, batch_isend_irecv, irecv, isend
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.world import (
    check_not_self,
    get_global_rank,
    group_or_default,
    group_rank_of,
    member,
    root_of,
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


def _check_objects(value: Any, name: str, least: int = 1, *, output: bool = False) -> None:
    """Check that an argument is a list of objects, or any collection if it is not an output.

    Args:
        value: the argument.
        name: its name.
        least: the least number of elements.
        output: whether objects are assigned to its elements.

    Raises:
        TypeError: it has another type.
        ValueError: it has fewer elements.
    """
    usable = isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))
    if not usable or (output and not hasattr(value, "__setitem__")):
        raise wrong_type(name, "a list of objects", value)
    if len(value) < least:
        raise ValueError(f"{name}: has {len(value)} elements, must have at least {least}")


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


def _buffer_for(sizes: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a buffer for pickles of these sizes, and its parts."""
    buffer = torch.empty(int(sizes.sum()), dtype=torch.uint8, device=sizes.device)
    return buffer, list(buffer.split(sizes.tolist()))


def all_gather_object(
    object_list: list[_T], obj: _T, group: ProcessGroup | None = None, weights_only: bool = False
) -> None:
    """See torch.distributed.all_gather_object. weights_only is available since torch 2.14."""
    pg = member(group, "all_gather_object")
    if pg is None:
        return
    _check_objects(object_list, "object_list", pg.size(), output=True)
    own, size = _packed([obj], pg.object_device, weights_only)
    sizes = torch.empty(pg.size(), dtype=torch.long, device=pg.object_device)
    all_gather_single(sizes, size, pg)
    parts = _buffer_for(sizes)[1]
    gather_everywhere(pg, "all_gather_object", parts, own, {})
    for rank, part in enumerate(parts):
        object_list[rank] = _unpickled(part, weights_only)


def gather_object(
    obj: _T,
    object_gather_list: list[_T] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.gather_object. weights_only is available since torch 2.14."""
    pg = group_or_default(group)
    root = root_of(pg, dst, group_dst, "dst")
    if member(pg, "gather_object") is None:
        return
    check_root_list(pg, root, object_gather_list, "object_gather_list", "destination")
    if object_gather_list:
        _check_objects(object_gather_list, "object_gather_list", pg.size(), output=True)
    own, size = _packed([obj], pg.object_device, weights_only)
    if object_gather_list is None or pg.rank() != root:
        to_root(pg, "gather_object", size, [], root, {})
        to_root(pg, "gather_object", own, [], root, {})
        return
    sizes = torch.empty(pg.size(), dtype=torch.long, device=pg.object_device)
    to_root(pg, "gather_object", size, sizes.split(1), root, {})
    parts = _buffer_for(sizes)[1]
    to_root(pg, "gather_object", own, parts, root, {})
    for rank, part in enumerate(parts):
        object_gather_list[rank] = _unpickled(part, weights_only)


def broadcast_object_list(
    object_list: list[_T],
    src: int | None = None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.broadcast_object_list. weights_only is available since torch 2.14."""
    pg = group_or_default(group)
    root = root_of(pg, src, group_src, "src")
    if member(pg, "broadcast_object_list") is None:
        return
    _check_objects(object_list, "object_list", output=pg.rank() != root)
    device = device or torch.device(pg.object_device)
    transfer = partial(broadcast, group=pg, group_src=root)
    if pg.rank() != root:
        _receive_objects(object_list, device, weights_only, transfer)
        return
    for tensor in reversed(_packed(object_list, device, weights_only)):
        transfer(tensor)


def _receive_objects(
    objects: list[Any],
    device: torch.device,
    weights_only: bool,
    receive: Callable[[torch.Tensor], object],
) -> None:
    """Receive the sizes of pickles, then the pickles, and store their values in a list."""
    sizes = torch.empty(len(objects), dtype=torch.long, device=device)
    receive(sizes)
    pickles, parts = _buffer_for(sizes)
    receive(pickles)
    values = [_unpickled(part, weights_only) for part in parts]
    for index, value in enumerate(values):  # not as a slice, which NumPy arrays treat otherwise
        objects[index] = value


def scatter_object_list(
    scatter_object_output_list: list[_T],
    scatter_object_input_list: Sequence[object] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """See torch.distributed.scatter_object_list. weights_only is available since torch 2.14."""
    pg = group_or_default(group)
    root = root_of(pg, src, group_src, "src")
    if member(pg, "scatter_object_list") is None:
        return
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
        _check_objects(scatter_object_input_list, "scatter_object_input_list", 0)
        if len(scatter_object_input_list) != pg.size():
            raise ValueError(
                f"scatter_object_input_list: has {len(scatter_object_input_list)} objects, must "
                f"have one for each of the {pg.size()} ranks"
            )
        packed = [_packed([value], device, weights_only) for value in scatter_object_input_list]
        pickles, sizes = map(list, zip(*packed, strict=True))
    size = torch.empty(1, dtype=torch.long, device=device)
    from_root(pg, "scatter_object_list", size, sizes, root, {})
    own = torch.empty(int(size), dtype=torch.uint8, device=device)
    from_root(pg, "scatter_object_list", own, pickles, root, {})
    scatter_object_output_list[0] = _unpickled(own, weights_only)


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

    use_batch uses the group's communicator, as :func:`batch_isend_irecv` does. weights_only is
    available since torch 2.14.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, dst, group_dst, "dst")
    check_not_self(pg, peer, "dst")
    _check_objects(object_list, "object_list")
    pickles, sizes = _packed(object_list, device or pg.object_device, weights_only)
    for tensor in (sizes, pickles):
        _transfer(isend, tensor, pg, peer, use_batch)


def _transfer(
    op: Callable[..., Any], tensor: torch.Tensor, pg: ProcessGroup, peer: int, use_batch: bool
) -> None:
    """Send or receive a tensor; op is isend or irecv."""
    if use_batch:
        for work in batch_isend_irecv([P2POp(op, tensor, group_peer=peer, group=pg)]):
            work.wait()
    else:
        pg.transfer(op is isend, tensor, peer)


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

    use_batch uses the group's communicator, as :func:`batch_isend_irecv` does. weights_only is
    available since torch 2.14.
    """
    pg = group_or_default(group)
    peer = group_rank_of(pg, src, group_src, "src")
    check_not_self(pg, peer, "src")
    _check_objects(object_list, "object_list", output=True)
    receive = partial(_transfer, irecv, pg=pg, peer=peer, use_batch=use_batch)
    _receive_objects(object_list, device or torch.device(pg.object_device), weights_only, receive)
    return get_global_rank(pg, peer)
