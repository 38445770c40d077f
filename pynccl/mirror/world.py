"""The process groups of this process, and the translation of ranks."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from datetime import timedelta
from typing import Literal, TypeAlias, TypeGuard, cast

import torch
from typing_extensions import TypeIs

from pynccl import _C, nccl
from pynccl._internal.arguments import integer
from pynccl.mirror.base.backend import Backend
from pynccl.mirror.group.process_group import ProcessGroup

__all__ = [
    "GroupMember",
    "_get_default_group",
    "_rank_not_in_group",
    "get_backend",
    "get_backend_config",
    "get_backend_impl",
    "get_global_rank",
    "get_group_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "is_initialized",
    "set_timeout",
]

NonMember: TypeAlias = Literal[-100]  # GroupMember.NON_GROUP_MEMBER


class _World:
    """The groups between init_process_group and destroy_process_group."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.default = None
        self.groups: dict[ProcessGroup, str] = {}
        self.outside: list[int] | None = None  # the ranks of the last group that excludes this rank
        self.count = 0
        self.hashed: Counter[str] = Counter()  # number of groups created so far, by their ranks

    @property
    def default(self) -> ProcessGroup | None:
        """The default group, stored in C++ for the fast path."""
        return cast("ProcessGroup | None", _C.default_group())

    @default.setter
    def default(self, pg: ProcessGroup | None) -> None:
        _C.set_default_group(pg)

    def next_name(self) -> str:
        name = str(self.count)
        self.count += 1
        return name

    def hashed_name(self, ranks: list[int]) -> str:
        """Return a name that only these ranks' previous calls determine."""
        members = "_".join(map(str, ranks))
        self.hashed[members] += 1
        text = f"{members}_{self.hashed[members]}"
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def add(self, pg: ProcessGroup) -> None:
        self.groups[pg] = pg.group_name


world = _World()


class _WorldMeta(type):
    """Adds the class property ``WORLD`` to ``group`` and ``GroupMember``."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802
        return world.default

    @WORLD.setter
    def WORLD(cls, pg: ProcessGroup | None) -> None:  # noqa: N802
        world.default = pg


class group(metaclass=_WorldMeta):  # noqa: N801
    """See torch.distributed.group. ``group.WORLD`` is the default group."""


class GroupMember(metaclass=_WorldMeta):
    """See torch.distributed.GroupMember.

    ``WORLD`` is the default group, ``NON_GROUP_MEMBER`` stands for a group without this rank.
    """

    NON_GROUP_MEMBER: NonMember = -100


def _rank_not_in_group(group: ProcessGroup | NonMember | None) -> TypeIs[NonMember]:
    """Return whether a group is ``GroupMember.NON_GROUP_MEMBER``."""
    return group == GroupMember.NON_GROUP_MEMBER


def _get_default_group() -> ProcessGroup:
    """Return the group that :func:`init_process_group` created, or raise ValueError."""
    default = world.default
    if default is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call "
            "init_process_group."
        )
    return default


def group_or_default(pg: ProcessGroup | None) -> ProcessGroup:
    """Return the group, which may be ``NON_GROUP_MEMBER``, or the default group for None.

    Raises:
        ValueError: it is not a group of the mirror, for example a list of ranks.
    """
    if pg is None:
        return _get_default_group()
    if not (isinstance(pg, ProcessGroup) or _rank_not_in_group(pg)):
        raise _not_registered(pg)
    return pg


def member(pg: ProcessGroup | None, name: str) -> ProcessGroup | None:
    """Return the group of an operation, or None with a warning if this rank is not in it.

    Raises:
        ValueError: it is not a group of the mirror, for example a list of ranks.
    """
    pg = group_or_default(pg)
    if _rank_not_in_group(pg):
        rank = -1 if world.default is None else world.default.rank()
        warnings.warn(
            f"Running {name} on global rank {rank} which does not belong to the given group.",
            stacklevel=3,
        )
        return None
    return pg


def _not_registered(group: object) -> ValueError:
    return ValueError(f"Group {group} is not registered, please create group with new_group")


def is_registered(pg: object) -> TypeGuard[ProcessGroup]:
    """Return whether a group exists in this process."""
    return isinstance(pg, ProcessGroup) and pg in world.groups


def is_initialized() -> bool:
    """See torch.distributed.is_initialized."""
    return world.default is not None


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """See torch.distributed.get_group_rank."""
    return _group_rank(group, global_rank, "global_rank")


def _group_rank(group: ProcessGroup, global_rank: int, name: str) -> int:
    """Return the group rank for an argument, a global rank."""
    if group is world.default and group is not None:
        return global_rank
    if _rank_not_in_group(group) and world.outside is not None:
        rank_of = {one: rank for rank, one in enumerate(world.outside)}
    elif is_registered(group):
        rank_of = group.rank_of
    else:
        raise _not_registered(group)
    rank = rank_of.get(global_rank)
    if rank is None:
        raise ValueError(f"{name}: Global rank {global_rank} is not part of group {group}")
    return rank


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """See torch.distributed.get_global_rank."""
    if group is world.default and group is not None:
        return group_rank
    if not (_rank_not_in_group(group) or is_registered(group)):
        raise _not_registered(group)
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"group_rank: Group rank {group_rank} is not part of group {group}")
    return ranks[group_rank]


def group_rank_of(
    pg: ProcessGroup, global_rank: int | None, group_rank: int | None, name: str
) -> int:
    """Return the group rank for ``src`` (a global rank) or ``group_src`` (a group rank).

    Args:
        pg: the group.
        global_rank: the global rank, or None.
        group_rank: the group rank, or None.
        name: the name of the argument for the global rank; that for the group rank is
            ``group_<name>``.

    Raises:
        TypeError: the rank is not an integer.
        ValueError: both or neither is given, or the group has no such rank.
    """
    if (global_rank is None) == (group_rank is None):
        text = "Must specify global_rank or group_rank"
        if group_rank is not None:
            text = "Can't specify both group_rank and global_rank"
        raise ValueError(f"{text}: pass either {name} or group_{name}")
    argument = name if group_rank is None else f"group_{name}"
    given = global_rank if group_rank is None else group_rank
    rank = integer(argument, given)  # type: ignore[arg-type]
    if group_rank is None:
        rank = _group_rank(pg, rank, name)
    if not _rank_not_in_group(pg) and not 0 <= rank < pg.size():
        raise ValueError(f"{argument}: rank {rank} is out of range for a group of size {pg.size()}")
    return rank


def root_of(pg: ProcessGroup, global_rank: int | None, group_rank: int | None, name: str) -> int:
    """Return the group rank of a root; global rank 0 if neither is given."""
    if global_rank is None and group_rank is None:
        global_rank = 0
    return group_rank_of(pg, global_rank, group_rank, name)


def check_not_self(pg: ProcessGroup, rank: int, name: str) -> None:
    """Check the peer of a message, passed as "src" or "dst".

    Raises:
        ValueError: the peer is this rank, or this rank is not in the group.
    """
    if _valid_group(pg).rank() == rank:
        kind = "source" if name == "src" else "destination"
        raise ValueError(
            f"{name}: Invalid {kind} rank: {kind} rank should not be the same as the rank of the "
            "current process."
        )


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """See torch.distributed.get_process_group_ranks.

    For ``GroupMember.NON_GROUP_MEMBER`` it returns the ranks of the last group that this process
    created without being a member.
    """
    if not _rank_not_in_group(group):
        return list(group_or_default(group or None).ranks)
    if world.outside is None:
        raise _not_registered(group)
    return list(world.outside)


def get_rank(group: ProcessGroup | None = None) -> int:
    """See torch.distributed.get_rank (ncclCommUserRank)."""
    if _rank_not_in_group(group):
        return -1
    pg = _get_default_group()
    return pg.rank() if group is None or group is pg else get_group_rank(group, pg.rank())


def get_world_size(group: ProcessGroup | None = None) -> int:
    """See torch.distributed.get_world_size (ncclCommCount)."""
    if _rank_not_in_group(group):
        return -1
    return group_or_default(group).size()


def _valid_group(pg: ProcessGroup | None) -> ProcessGroup:
    found = group_or_default(pg or None)
    if _rank_not_in_group(found):
        raise ValueError("Invalid process group specified")
    return found


def get_backend_config(group: ProcessGroup | None = None) -> str:
    """See torch.distributed.get_backend_config. Returns, e.g., ``"cpu:host,cuda:nccl"``."""
    return repr(_valid_group(group).config)


def get_backend(group: ProcessGroup | None = None) -> str:
    """See torch.distributed.get_backend: ``"nccl"``, ``"host"`` or ``"cpu:host,cuda:nccl"``."""
    pg = _valid_group(group)
    if not is_registered(pg):
        raise ValueError(
            f"Process group {pg} is not initialized in the world group map. Please initialize the "
            "group first."
        )
    return Backend(pg.config.name)


def get_backend_impl(
    group: str | ProcessGroup | None = None, device: torch.device | None = None
) -> nccl.Communicator:
    """See torch.distributed.get_backend_impl, available since torch 2.14.

    Returns the group's Communicator, for NCCL features that torch's functions lack: windows, memory
    statistics, the flight record. The group owns it: do not close it. If the group has not created
    it yet, this call creates it, and all ranks of the group must call it.

    Args:
        group: the group, or its ``group_name``; None is the default group.
        device: the device; None is ``device_id``, or the device type of the group's only backend.

    Returns:
        The communicator.

    Raises:
        ValueError: the group is unknown, or it has several backends and no device is given.
        RuntimeError: no backend of the group supports the device.
    """
    if isinstance(group, str):
        named = [pg for pg, name in world.groups.items() if name == group]
        if not named:
            raise ValueError(f"group: unknown process group {group!r}")
        return named[0].get_backend(device)
    return _valid_group(group).get_backend(device)


def set_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
    """See torch.distributed.set_timeout, available since torch 2.14.

    Sets the timeout of this rank's later operations, on existing and future communicators. Zero
    means no limit.
    """
    _valid_group(group).set_timeout(timeout)


def get_pg_count() -> int:
    """See torch.distributed.get_pg_count. Destroyed groups count as well."""
    return world.count
