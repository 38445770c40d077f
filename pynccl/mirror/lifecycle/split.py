"""split_group: splits a group into new groups."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from pynccl._internal.arguments import wrong_type
from pynccl.errors import NcclError
from pynccl.mirror.base.backend import Backend, BackendConfig, limited, timeout_of
from pynccl.mirror.base.checks import checked_ints
from pynccl.mirror.base.errors import translated
from pynccl.mirror.group.process_group import Options, ProcessGroup
from pynccl.mirror.world import GroupMember, NonMember, _get_default_group, is_registered, world

__all__ = ["split_group"]


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: object | None = None,
    group_desc: str | None = None,
    backend: str | Backend | None = None,
) -> ProcessGroup | NonMember:
    """See torch.distributed.split_group (ncclCommSplit).

    pg_options is as for :func:`init_process_group`. A rank in none of the new groups receives
    ``GroupMember.NON_GROUP_MEMBER``, as since torch 2.14. backend is available since torch 2.13.
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    if not isinstance(split_ranks, Iterable):
        raise wrong_type("split_ranks", "a list of lists", split_ranks)
    default = _get_default_group()
    parent = parent_pg or default
    if not is_registered(parent):
        raise ValueError(f"Group {parent} is not registered")
    config = parent.config if backend is None else _part_of(parent.config, str(backend))
    limit = timeout_of(timeout, config)
    options = Options(pg_options) if pg_options is not None else parent.options
    lists = [checked_ints(ranks, f"split_ranks[{i}]") for i, ranks in enumerate(split_ranks)]
    color = _color_of(parent, lists, default.size())
    members = sorted(lists[color or 0])
    name = f"{parent.group_name}:split:{parent.splits}:{color}"
    parent.splits += 1
    pg = ProcessGroup(
        parent.job.part(members),
        [parent.ranks[rank] for rank in members],
        members.index(parent.rank()) if color is not None else -1,
        name=name,
        config=config,
        timeout=limit,
        options=options,
        desc=group_desc or f"{parent.group_desc}:split:{parent.splits}",
        device_id=parent.bound_device_id,
    )
    for device_type in config.device_backend_map:
        _split_comm_stream(parent, pg, device_type, color)
    if color is None:
        return GroupMember.NON_GROUP_MEMBER
    world.add(pg)
    return pg


def _split_comm_stream(
    parent: ProcessGroup, child: ProcessGroup, device_type: str, color: int | None
) -> None:
    """Split the parent's communicator; if none exists yet, the child creates its own later."""
    comm_stream = parent.comm_streams().get(device_type)
    if comm_stream is None:
        return
    with translated(NcclError), limited(parent.timeout):
        comm = comm_stream.comm.split(color, comm_stream.rank, config=child.options.config)
    if comm is not None:
        if (comm.nranks, comm.rank) != (child.size(), child.rank()):
            comm.abort()
            raise ValueError(
                f"split_ranks: rank {parent.rank()} requests a group of {child.size()} ranks, but "
                f"the arguments of the other ranks result in {comm.nranks}"
            )
        child.adopt(child.make_comm_stream(comm, comm_stream.device))


def _color_of(parent: ProcessGroup, split_ranks: list[list[int]], world_size: int) -> int | None:
    color = None
    for index, ranks in enumerate(split_ranks):
        if len(ranks) == 0:
            raise ValueError(f"split_ranks[{index}]: the split group cannot be empty")
        if len(ranks) > world_size:
            raise ValueError(
                f"split_ranks[{index}]: the split group's size should be less or equal to the "
                "world_size set by init_process_group"
            )
        if len(ranks) != len(set(ranks)):
            raise ValueError(f"split_ranks[{index}]: the split group cannot have duplicate ranks")
        for rank in ranks:
            if not 0 <= rank < parent.size():
                raise ValueError(
                    f"split_ranks: rank {rank} is out of range for a group of size {parent.size()}"
                )
        if color is None and parent.rank() in ranks:
            color = index
    return color


def _part_of(config: BackendConfig, backend: str) -> BackendConfig:
    part = BackendConfig(Backend(backend))
    for device, name in part.device_backend_map.items():
        if config.device_backend_map.get(device) != name:
            raise ValueError(
                f"Requested backend {name!r} for device {device!r} is not present in the parent "
                f"process group ({config!r})"
            )
    return part
