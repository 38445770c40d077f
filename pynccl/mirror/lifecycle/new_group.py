"""new_group and new_subgroups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import cast

import torch

from pynccl._internal.arguments import integer, wrong_type
from pynccl.mirror.base.backend import Backend, BackendConfig, check_usable, timeout_of
from pynccl.mirror.base.checks import checked_ints
from pynccl.mirror.group.process_group import Options, ProcessGroup
from pynccl.mirror.lifecycle.destroy import abort_process_group
from pynccl.mirror.world import (
    GroupMember,
    NonMember,
    _get_default_group,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    world,
)

__all__ = [
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
]


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | Backend | None = None,
    pg_options: object | None = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
    sort_ranks: bool = True,
) -> ProcessGroup | NonMember:
    """See torch.distributed.new_group.

    timeout, backend, pg_options and device_id are as for :func:`init_process_group`. sort_ranks is
    available since torch 2.12. With use_local_synchronization, a rank outside the group receives
    ``GroupMember.NON_GROUP_MEMBER``, as since torch 2.14. Raises DistStoreError if not all ranks
    call it before the timeout.
    """
    default = _get_default_group()
    if ranks is not None:
        ranks = checked_ints(ranks, "ranks")
    if group_desc is not None and not isinstance(group_desc, str):
        raise wrong_type("group_desc", "a str", group_desc)
    bound = default.bound_device_id
    if device_id is not None and not isinstance(device_id, torch.device):
        raise wrong_type("device_id", "a torch.device", device_id)
    if device_id is None:
        device_id = bound
    elif bound is not None and device_id != bound:
        raise AssertionError("Mismatched bound device between new pg and the default pg.")
    config = default.config
    if backend:
        config = BackendConfig(Backend(backend))
        check_usable(config)
    limit = timeout_of(timeout, config)
    options = Options(pg_options) if pg_options is not None else default.options
    own = default.rank()
    if use_local_synchronization and ranks is not None and own not in ranks:
        return GroupMember.NON_GROUP_MEMBER
    members = list(range(default.size())) if ranks is None else ranks
    _check_ranks(members, default.size(), "ranks")
    if sort_ranks:
        members.sort()
    name = world.hashed_name(members) if use_local_synchronization else world.next_name()
    if own not in members:
        world.outside = members
        return GroupMember.NON_GROUP_MEMBER
    pg = ProcessGroup(
        default.job.part(members),
        members,
        members.index(own),
        name=name,
        config=config,
        timeout=limit,
        options=options,
        desc="undefined" if group_desc is None else group_desc,
        device_id=device_id if device_id and device_id.type in config.device_backend_map else None,
    )
    world.add(pg)
    try:
        pg.open_eagerly()
    except BaseException:
        abort_process_group(pg)
        raise
    return pg


def _check_ranks(ranks: list[int], world_size: int, name: str) -> None:
    if not ranks:
        raise ValueError(f"{name}: a group must have at least one rank")
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"{name}: ranks list must not contain duplicate entries, got {ranks}")
    if len(ranks) > world_size:
        raise ValueError(
            f"{name}: the new group's world size should be less or equal to the world size set by "
            "init_process_group"
        )
    for rank in ranks:
        if rank < 0 or rank >= world_size:
            raise ValueError(
                f"{name}: Rank {rank} is out of range. Valid ranks are 0 to {world_size - 1} "
                f"(world_size={world_size})"
            )


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    backend: str | Backend | None = None,
    pg_options: object | None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup, list[ProcessGroup | NonMember]]:
    """See torch.distributed.new_subgroups. Divides any group, not only the default group."""
    if group_size is None:
        if not torch.cuda.is_available():
            raise ValueError(
                "Default group size only takes effect when CUDA is available. If your subgroup "
                "uses a backend that does not depend on CUDA, please pass in 'group_size' "
                "correctly."
            )
        group_size = torch.cuda.device_count()
    group_size = integer("group_size", group_size)
    if group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    size = get_world_size(group=group)
    if size < group_size:
        raise ValueError(
            f"The arg 'group_size' ({group_size}) must not exceed the world size ({size})"
        )
    if size % group_size != 0:
        raise ValueError(f"The world size ({size}) must be divisible by '{group_size=}'")
    ranks = get_process_group_ranks(group)
    own, subgroups = new_subgroups_by_enumeration(
        [ranks[i : i + group_size] for i in range(0, size, group_size)],
        timeout=timeout,
        backend=backend,
        pg_options=pg_options,
        group_desc=group_desc,
    )
    return cast("ProcessGroup", own), subgroups  # every rank is in one


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: list[list[int]],
    timeout: timedelta | None = None,
    backend: str | Backend | None = None,
    pg_options: object | None = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | NonMember | None, list[ProcessGroup | NonMember]]:
    """See torch.distributed.new_subgroups_by_enumeration."""
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    if not isinstance(ranks_per_subgroup_list, Iterable):
        raise wrong_type("ranks_per_subgroup_list", "a list of lists", ranks_per_subgroup_list)
    subgroups = []
    own = None
    divided = _divided(ranks_per_subgroup_list, get_world_size())
    for ranks in divided:
        subgroup = new_group(
            ranks=ranks,
            timeout=timeout,
            backend=backend,
            pg_options=pg_options,
            group_desc=group_desc,
        )
        subgroups.append(subgroup)
        if get_rank() in ranks:
            own = subgroup
    return own, subgroups


def _divided(ranks_per_subgroup: list[list[int]], world_size: int) -> list[list[int]]:
    """Return the ranks of disjoint groups as lists of int."""
    name = "ranks_per_subgroup_list"
    lists = [
        checked_ints(ranks, f"{name}[{index}]") for index, ranks in enumerate(ranks_per_subgroup)
    ]
    seen = dict[int, list[int]]()
    for index, ranks in enumerate(lists):
        _check_ranks(ranks, world_size, f"{name}[{index}]")
        for rank in ranks:
            if rank in seen:
                raise ValueError(
                    f"{name}: Rank {rank} has appeared in both subgroup {seen[rank]} and {ranks}"
                )
            seen[rank] = ranks
    return lists
