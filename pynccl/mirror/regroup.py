"""Groups made from a group: split into parts, or shrunk by the ranks that are lost."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from pynccl.errors import NcclError
from pynccl.mirror.backend import Backend, BackendConfig
from pynccl.mirror.channel import Channel
from pynccl.mirror.errors import translate
from pynccl.mirror.initialize import timeout_of
from pynccl.mirror.process_group import Options, ProcessGroup
from pynccl.mirror.registry import _get_default_group, abort_process_group, is_registered, world

__all__ = ["SHRINK_ABORT", "SHRINK_DEFAULT", "shrink_group", "split_group"]

SHRINK_DEFAULT = 0x00
SHRINK_ABORT = 0x01

_logger = logging.getLogger(__name__)


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: list | None = None,
    timeout: timedelta | None = None,
    pg_options: Any | None = None,
    group_desc: str | None = None,
    backend: str | Backend | None = None,
) -> ProcessGroup | None:
    """Split a group (ncclCommSplit). All its ranks call it, with the same lists.

    Args:
        parent_pg: the group; None is the default one.
        split_ranks: lists of its own ranks, one for each new group.
        timeout, pg_options: as for init_process_group.
        group_desc: what the groups are for, in words.
        backend: which of the parent's backends the new groups keep; None for all.

    Returns:
        The group that this rank is in, or None.
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    default = _get_default_group()
    parent = parent_pg or default
    if not is_registered(parent):
        raise ValueError(f"Group {parent} is not registered")
    config = parent.config if backend is None else _part_of(parent.config, str(backend))
    limit = timeout_of(timeout, config)
    color = _color_of(parent.rank(), split_ranks, default.size())
    members = sorted(split_ranks[color or 0])
    name = f"{parent.group_name}:split:{parent.splits}:{color}"
    parent.splits += 1
    pg = ProcessGroup(
        world.store,  # type: ignore[arg-type]
        [parent.ranks[rank] for rank in members],
        members.index(parent.rank()) if color is not None else -1,
        name=name,
        config=config,
        timeout=limit,
        options=Options(pg_options) if pg_options is not None else parent.options,
        desc=group_desc or f"{parent.group_desc}:split:{parent.splits}",
        device_id=parent.bound_device_id,
    )
    for device_type in config.device_backend_map:
        _split_channel(parent, pg, device_type, color)
    if color is None:
        return None
    world.add(pg)
    return pg


def _split_channel(
    parent: ProcessGroup, child: ProcessGroup, device_type: str, color: int | None
) -> None:
    """Split the parent's communicator; where it has none yet, the child makes its own later."""
    channel = parent.existing_channels().get(device_type)
    if channel is None:
        return
    try:
        comm = channel.comm.split(color, channel.rank, config=child.options.config)
    except NcclError as error:
        raise translate(error) from None
    if comm is not None:
        child.adopt(child.make_channel(comm, channel.device))


def _color_of(rank: int, split_ranks: list[list[int]], world_size: int) -> int | None:
    color = None
    for index, ranks in enumerate(split_ranks):
        if len(ranks) == 0:
            raise ValueError("the split group cannot be empty")
        if len(ranks) > world_size:
            raise ValueError(
                "the split group's size should be less or equal to the world_size set by "
                "init_process_group"
            )
        if len(ranks) != len(set(ranks)):
            raise ValueError("the split group cannot have duplicate ranks")
        if color is None and rank in ranks:
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


def shrink_group(
    ranks_to_exclude: list[int],
    group: ProcessGroup | None = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any | None = None,
) -> ProcessGroup:
    """Make a group of those of a group's ranks that are left. Only they call it.

    The old group is destroyed. Where it is the default one, the new one takes its place and all
    other groups are destroyed, because global ranks change.

    Args:
        ranks_to_exclude: ranks of the group that are not to be in the new one.
        group: the group; None is the default one.
        shrink_flags: ``SHRINK_ABORT`` aborts what is under way on the old group; without it what
            was issued is finished first.
        pg_options: as for init_process_group; None keeps the group's.

    Raises:
        TypeError, ValueError: an argument is wrong.
        RuntimeError: this rank is among the excluded ones.
    """
    excluded = _checked_exclusion(ranks_to_exclude, shrink_flags)
    old = group if group is not None else _get_default_group()
    if old.size() <= 1:
        raise ValueError(
            f"Cannot shrink a process group with size {old.size()}. Group must have at least 2 "
            "ranks to support shrinking."
        )
    _check_excluded_ranks(excluded, old)
    is_default = old is world.default
    left = [rank for rank in range(old.size()) if rank not in excluded]
    store = world.store
    assert store is not None
    name = world.hashed_name([old.ranks[rank] for rank in left])
    if is_default:
        others = [pg for pg in world.groups if pg is not old]
        if others:
            _logger.warning("Shrinking the default group destroys %d other groups", len(others))
        for pg in others:
            abort_process_group(pg)
    del world.groups[old]
    pg = ProcessGroup(
        store,
        [old.ranks[rank] for rank in left],
        left.index(old.rank()),
        name=f"{old.group_name}:shrunk:{name}",
        config=old.config,
        timeout=old.timeout,
        options=Options(pg_options) if pg_options is not None else old.options,
        desc="default:shrunken" if is_default else f"{old.group_name}:shrunk",
        device_id=old.bound_device_id,
    )
    aborts = bool(shrink_flags & SHRINK_ABORT)
    for channel in old.existing_channels().values():
        _shrink_channel(channel, pg, excluded, aborts)
    old.abort() if aborts else old.shutdown()
    if is_default:
        world.default = pg
    world.add(pg)
    if not pg.existing_channels():
        pg.open_at_once()
    return pg


def _shrink_channel(channel: Channel, pg: ProcessGroup, excluded: list[int], aborts: bool) -> None:
    """Shrink a communicator. Where NCCL is older than that, or the communicator was given up for a
    timeout, the new group makes its own later, with an id through the store.
    """
    comm = channel.comm
    _, can_shrink = comm.library.functions()["ncclCommShrink"]
    if comm.closed or not can_shrink:
        return
    try:
        shrunk = comm.shrink(excluded, abort=aborts, config=pg.options.config)
    except NcclError as error:
        raise translate(error) from None
    pg.adopt(pg.make_channel(shrunk, channel.device))


def _checked_exclusion(ranks: list[int], shrink_flags: int) -> list[int]:
    if not isinstance(ranks, list):
        raise TypeError(
            f"ranks_to_exclude must be a list, but got {type(ranks).__name__}. Example: [1, 3, 5] "
            "to exclude ranks 1, 3, and 5."
        )
    if not ranks:
        raise ValueError(
            "ranks_to_exclude cannot be empty. To shrink a group, you must specify at least one "
            "rank to exclude."
        )
    if not isinstance(shrink_flags, int) or shrink_flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(
            f"Invalid shrink_flags value: {shrink_flags}. Must be one of: SHRINK_DEFAULT "
            f"({SHRINK_DEFAULT}) or SHRINK_ABORT ({SHRINK_ABORT})."
        )
    return ranks


def _check_excluded_ranks(excluded: list[int], pg: ProcessGroup) -> None:
    for index, rank in enumerate(excluded):
        if not isinstance(rank, int):
            raise TypeError(
                "All elements in ranks_to_exclude must be integers. "
                f"Element at index {index} is {type(rank).__name__}: {rank}"
            )
        if not 0 <= rank < pg.size():
            raise ValueError(
                f"Rank {rank} at index {index} is out of bounds for group size {pg.size()}. "
                f"Valid ranks are in range [0, {pg.size() - 1}]."
            )
        if rank in excluded[:index]:
            raise ValueError(f"Duplicate rank {rank} found in ranks_to_exclude at index {index}.")
    if len(excluded) >= pg.size():
        raise ValueError(
            f"Cannot exclude all {pg.size()} ranks from process group. At least one rank must "
            "remain."
        )
    if pg.rank() in excluded:
        raise RuntimeError(
            f"Current rank {pg.rank()} is in the exclusion list and should not call "
            "shrink_group(). Only non-excluded ranks should participate in the shrinking operation."
        )
