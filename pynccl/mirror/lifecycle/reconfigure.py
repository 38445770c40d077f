"""reconfigure: creates a group of the surviving ranks."""

from __future__ import annotations

import weakref
from datetime import timedelta

from pynccl import _C
from pynccl._internal.recovery import Rounds
from pynccl.errors import NcclError
from pynccl.mirror.base.errors import translated
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.lifecycle.shrink import end_other_groups, smaller_group
from pynccl.mirror.world import group_or_default, is_registered, world

__all__ = ["reconfigure"]

_TIMEOUT = timedelta(seconds=30)

_rounds: weakref.WeakKeyDictionary[ProcessGroup, Rounds] = weakref.WeakKeyDictionary()


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
    limit = _TIMEOUT if timeout is None else timeout
    for comm_stream in old.comm_streams().values():
        if not comm_stream.comm.closed:
            _C.begin_recovery(comm_stream.comm)  # ranks that wait for this one raise
    rounds = _rounds.setdefault(old, Rounds("reconfigure", old.size()))
    with translated(NcclError):
        lost = rounds.agree(old.store, old.rank(), limit.total_seconds(), gone=old.job.gone)
    left = [rank for rank in range(old.size()) if rank not in lost]
    end_other_groups(old)
    old.abort()
    name = f"reconfigured:{rounds.number}"
    pg = smaller_group(old, left, name=name, options=old.options, desc=old.group_desc)
    try:
        pg.open_at_once(limit)
    except BaseException:
        pg.abort()
        raise
    del world.groups[old]
    if old is world.default:
        world.default = pg
    world.add(pg)
    return pg
