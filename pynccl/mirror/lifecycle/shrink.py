"""shrink_group and reconfigure: create a group of some of a group's ranks."""

from __future__ import annotations

import logging
import weakref
from datetime import timedelta

from pynccl import _C
from pynccl._internal.membership import shrunk
from pynccl._internal.recovery import Rounds
from pynccl.errors import NcclError
from pynccl.mirror.base.backend import limited
from pynccl.mirror.base.errors import translated
from pynccl.mirror.group.comm_stream import CommStream
from pynccl.mirror.group.process_group import Options, ProcessGroup
from pynccl.mirror.lifecycle.destroy import abort_process_group
from pynccl.mirror.world import group_or_default, is_registered, world

__all__ = ["SHRINK_ABORT", "SHRINK_DEFAULT", "reconfigure", "shrink_group"]

SHRINK_DEFAULT = 0x00
SHRINK_ABORT = 0x01

_RECONFIGURE_TIMEOUT = timedelta(seconds=30)

_logger = logging.getLogger(__name__)
_rounds: weakref.WeakKeyDictionary[ProcessGroup, Rounds] = weakref.WeakKeyDictionary()


def shrink_group(
    ranks_to_exclude: list[int],
    group: ProcessGroup | None = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: object | None = None,
) -> ProcessGroup:
    """See torch.distributed.shrink_group (ncclCommShrink).

    Only the surviving ranks call it. The old group is destroyed. If it is the default group, the
    new one takes its place and all other groups are destroyed, because global ranks change.
    pg_options is as for :func:`init_process_group`.
    """
    excluded = _checked_exclusion(ranks_to_exclude, shrink_flags)
    old = group_or_default(group)
    if not is_registered(old):
        raise ValueError(f"Group {old} is not registered")
    options = Options(pg_options) if pg_options is not None else old.options
    if old.size() <= 1:
        raise ValueError(
            f"Cannot shrink a process group with size {old.size()}. Group must have at least 2 "
            "ranks to support shrinking."
        )
    _check_excluded_ranks(excluded, old)
    left = [rank for rank in range(old.size()) if rank not in excluded]
    _end_other_groups(old)
    del world.groups[old]
    name = f"shrunk:{world.hashed_name([old.ranks[rank] for rank in left])}"
    pg = _smaller_group(
        old,
        left,
        name=name,
        options=options,
        desc="default:shrunken" if old is world.default else f"{old.group_name}:shrunk",
    )
    aborts = bool(shrink_flags & SHRINK_ABORT)
    for comm_stream in old.comm_streams().values():
        _shrink_comm_stream(comm_stream, pg, excluded, aborts)
    old.abort() if aborts else old.shutdown()
    if old is world.default:
        world.default = pg
    world.add(pg)
    if not pg.comm_streams():
        pg.open_eagerly()
    return pg


def _end_other_groups(old: ProcessGroup) -> None:
    """Abort the other groups if the default group is replaced, because global ranks change."""
    if old is not world.default:
        return
    others = [pg for pg in world.groups if pg is not old]
    if others:
        _logger.warning("Replacing the default group destroys %d other groups", len(others))
    for pg in others:
        abort_process_group(pg)


def _smaller_group(
    old: ProcessGroup, left: list[int], *, name: str, options: Options, desc: str
) -> ProcessGroup:
    """Create a group of some of a group's ranks, without communicators.

    Args:
        old: the group.
        left: the ranks of the new group, including this one, in the old group's order.
        name: the name of the new group, appended to the old group's name.
        options: the options of the communicators.
        desc: a description of the new group.
    """
    return ProcessGroup(
        old.job.part(left),
        [old.ranks[rank] for rank in left],
        left.index(old.rank()),
        name=f"{old.group_name}:{name}",
        config=old.config,
        timeout=old.timeout,
        options=options,
        desc=desc,
        device_id=old.bound_device_id,
    )


def _shrink_comm_stream(
    comm_stream: CommStream, pg: ProcessGroup, excluded: list[int], aborts: bool
) -> None:
    """Shrink a communicator.

    If it cannot be shrunk, the new group creates its communicator later, with a unique id from the
    store.
    """
    with translated(NcclError), limited(pg.timeout):
        comm = shrunk(comm_stream.comm, excluded, aborts=aborts, config=pg.options.config)
    if comm is not None:
        pg.adopt(pg.make_comm_stream(comm, comm_stream.device))


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
                f"ranks_to_exclude: Rank {rank} at index {index} is out of bounds for group size "
                f"{pg.size()}. Valid ranks are in range [0, {pg.size() - 1}]."
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


def reconfigure(
    group: ProcessGroup | None = None, timeout: timedelta | None = None
) -> ProcessGroup:
    """Create a group of the surviving ranks, which replaces a group that has lost ranks.

    All surviving ranks call it, after ranks have died or were stopped, or after an operation timed
    out. Pending operations of the group fail. The ranks agree through the store on the surviving
    ranks, so the rank that hosts the store must be one of them. A process that has exited on the
    same machine is detected immediately; any other missing rank is excluded after the timeout. The
    surviving ranks keep their order. They create new communicators with the group's options and
    timeout. If the group is the default group, the new one becomes the default group, and all other
    groups are destroyed.

    Counterpart of :meth:`pynccl.nccl.Communicator.recover`. torch.distributed does not provide this
    function.

    Args:
        group: the group; None is the default group.
        timeout: how long to wait for ranks that are alive; None is 30 seconds.

    Returns:
        The new group.

    Raises:
        ValueError: there is no default group, or the group is not registered.
        NcclRemoteError: this rank was excluded.
        DistStoreError: a rank took part in the agreement but not in creating the group. All ranks
            raise; the next call excludes it.
        DistNetworkError: the store is gone.
        DistBackendError: NCCL failed.
    """
    old = group_or_default(group)
    if not is_registered(old):
        raise ValueError(f"Group {old} is not registered")
    limit = _RECONFIGURE_TIMEOUT if timeout is None else timeout
    for comm_stream in old.comm_streams().values():
        if not comm_stream.comm.closed:
            _C.begin_recovery(comm_stream.comm)  # ranks that wait for this one raise
    rounds = _rounds.setdefault(old, Rounds("reconfigure", old.size()))
    with translated(NcclError):
        lost = rounds.agree(old.store, old.rank(), limit.total_seconds(), gone=old.job.gone)
    left = [rank for rank in range(old.size()) if rank not in lost]
    _end_other_groups(old)
    old.abort()
    name = f"reconfigured:{rounds.number}"
    pg = _smaller_group(old, left, name=name, options=old.options, desc=old.group_desc)
    try:
        pg.open_eagerly(limit)
    except BaseException:
        pg.abort()
        raise
    del world.groups[old]
    if old is world.default:
        world.default = pg
    world.add(pg)
    return pg
