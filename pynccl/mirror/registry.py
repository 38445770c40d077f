"""The groups of this process: the default one, the others, and their ranks."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable
from typing import TypeGuard

from torch.distributed.distributed_c10d import Store

from pynccl import _C
from pynccl.mirror.backend import Backend
from pynccl.mirror.process_group import ProcessGroup

__all__ = [
    "GroupMember",
    "_get_default_group",
    "_rank_not_in_group",
    "destroy_process_group",
    "get_backend",
    "get_backend_config",
    "get_global_rank",
    "get_group_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "is_initialized",
]


class _World:
    """What init_process_group begins and destroy_process_group ends."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.default = None
        self.store: Store | None = None  # common to all groups, below their prefixes
        self.groups: dict[ProcessGroup, str] = {}
        self.count = 0

    @property
    def default(self) -> ProcessGroup | None:
        return self._default

    @default.setter
    def default(self, pg: ProcessGroup | None) -> None:
        self._default = pg
        _C.set_default_group(pg)

    def next_name(self) -> str:
        name = str(self.count)
        self.count += 1
        return name

    def hashed_name(self, ranks: list[int]) -> str:
        """A name that ranks outside the group need not count."""
        text = "_".join(map(str, [*ranks, len(self.groups)]))
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def add(self, pg: ProcessGroup) -> None:
        self.groups[pg] = pg.group_name


world = _World()


class _WorldMeta(type):
    """Gives ``group`` and ``GroupMember`` the class property ``WORLD``."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802
        return world.default

    @WORLD.setter
    def WORLD(cls, pg: ProcessGroup | None) -> None:  # noqa: N802
        world.default = pg


class group(metaclass=_WorldMeta):  # noqa: N801
    """``group.WORLD`` is the default group."""


class GroupMember(metaclass=_WorldMeta):
    """``WORLD`` is the default group, ``NON_GROUP_MEMBER`` one that this rank is not in."""

    NON_GROUP_MEMBER = -100


def _rank_not_in_group(group: ProcessGroup | None) -> bool:
    """Whether a group is what new_group gave to a rank that is not in it."""
    return group == GroupMember.NON_GROUP_MEMBER  # type: ignore[comparison-overlap]


def warn_outside(name: str) -> None:
    """Warn that an operation does nothing on this rank."""
    rank = -1 if world.default is None else world.default.rank()
    warnings.warn(
        f"Running {name} on global rank {rank} which does not belong to the given group.",
        stacklevel=3,
    )


def _get_default_group() -> ProcessGroup:
    """The default group.

    Raises:
        ValueError: there is none yet.
    """
    if world.default is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call "
            "init_process_group."
        )
    return world.default


def group_or_default(pg: ProcessGroup | None) -> ProcessGroup:
    """The group, the default one for None."""
    return _get_default_group() if pg is None else pg


def member(pg: ProcessGroup | None, name: str) -> ProcessGroup | None:
    """The group of an operation; None, with a warning, where this rank is not in it."""
    if pg is None:
        return _get_default_group()
    if _rank_not_in_group(pg):
        warn_outside(name)
        return None
    return pg


def is_registered(pg: object) -> TypeGuard[ProcessGroup]:
    """Whether a group exists in this process."""
    return isinstance(pg, ProcessGroup) and pg in world.groups


def is_initialized() -> bool:
    """Whether there is a default group."""
    return world.default is not None


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Translate a global rank into one of a group.

    Raises:
        ValueError: it is not in the group.
    """
    if group is world.default and group is not None:
        return global_rank
    if not is_registered(group):
        raise ValueError(f"Group {group} is not registered, please create group with new_group")
    rank = group.rank_of.get(global_rank)
    if rank is None:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return rank


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Translate a rank of a group into a global one.

    Raises:
        ValueError: the group does not have it.
    """
    if group is world.default and group is not None:
        return group_rank
    if not is_registered(group):
        raise ValueError(f"Group {group} is not registered, please create group with new_group")
    if not 0 <= group_rank < group.size():
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return group.ranks[group_rank]


def group_rank_of(pg: ProcessGroup, global_rank: int | None, group_rank: int | None) -> int:
    """The rank in the group that an argument and its ``group_`` twin name.

    Raises:
        ValueError: both or neither is given, or the group has no such rank.
    """
    if group_rank is not None:
        if global_rank is not None:
            raise ValueError("Can't specify both group_rank and global_rank")
        return group_rank
    if global_rank is None:
        raise ValueError("Must specify global_rank or group_rank")
    return get_group_rank(pg, global_rank)


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """The global ranks of a group, in the order of its own."""
    return list(group_or_default(group or None).ranks)


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in a group, -1 where it is not in it."""
    if _rank_not_in_group(group):
        return -1
    pg = _get_default_group()
    return pg.rank() if group is None or group is pg else get_group_rank(group, pg.rank())


def get_world_size(group: ProcessGroup | None = None) -> int:
    """How many ranks a group has, -1 where this one is not in it."""
    if _rank_not_in_group(group):
        return -1
    return group_or_default(group).size()


def _backend_of(pg: ProcessGroup | None) -> ProcessGroup:
    found = pg or _get_default_group()
    if _rank_not_in_group(found):
        raise ValueError("Invalid process group specified")
    return found


def get_backend_config(group: ProcessGroup | None = None) -> str:
    """The backend of each kind of device, as ``"cpu:host,cuda:nccl"``."""
    return repr(_backend_of(group).config)


def get_backend(group: ProcessGroup | None = None) -> Backend:
    """The backend of a group: ``"nccl"``, ``"host"``, or ``"cpu:host,cuda:nccl"``."""
    pg = _backend_of(group)
    if not is_registered(pg):
        raise ValueError(
            f"Process group {pg} is not initialized in the world group map. Please initialize the "
            "group first."
        )
    return Backend(pg.config.name)


def get_pg_count() -> int:
    """How many groups were made since init_process_group."""
    return world.count


def destroy_process_group(group: ProcessGroup | None = None):
    """Free a group; without one, or with the default group, all of them.

    Args:
        group: the group; what was issued on it and waited for is finished first.

    Raises:
        ValueError: there is no such group.
    """
    if _rank_not_in_group(group):
        return
    pg = world.default if group is None else group
    if pg is None:
        raise AssertionError("Process group cannot be None")
    if not is_registered(pg):
        raise ValueError("Invalid process group specified")
    if pg is not world.default:
        if pg._batch is not None:
            warnings.warn(
                "Some coalesced collectives haven't been launched when ProcessGroup is destroyed. "
                "They will be cleaned.",
                stacklevel=2,
            )
        del world.groups[pg]
        pg.shutdown()
        return
    end_all(ProcessGroup.shutdown)


def abort_process_group(pg: ProcessGroup) -> None:
    """Free one group at once."""
    del world.groups[pg]
    pg.abort()


def end_all(end: Callable[[ProcessGroup], None]) -> None:
    """End every group, the newest first, and forget them all."""
    groups = sorted(world.groups, key=world.groups.__getitem__, reverse=True)
    world.reset()
    errors = []
    for pg in groups:
        try:
            end(pg)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _leave_at_exit() -> None:
    """End what a script left open, so that no rank waits for this one and none is disturbed."""
    with contextlib.suppress(Exception):
        end_all(ProcessGroup.leave)


def _refuse_after_fork() -> None:
    """A child of fork() shares neither the communicators' memory nor their threads."""
    for pg in world.groups:
        pg.forbid("it was made before this process was forked from its parent")
    world.reset()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_refuse_after_fork)
