"""destroy_process_group, and the end of groups at the end of the process and after fork()."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
from collections.abc import Callable

from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.world import _rank_not_in_group, is_registered, world

__all__ = [
    "destroy_process_group",
]


def destroy_process_group(group: ProcessGroup | None = None):
    """Free a group: torch.distributed.destroy_process_group (ncclCommFinalize, ncclCommDestroy).

    Operations that were issued are finished first; after 2 seconds, or the group's timeout if that
    is shorter, asynchronous ones that were not waited for are aborted.

    Args:
        group: the group; None, and the default group, are all groups.

    Raises:
        ValueError: the group is not registered.
        AssertionError: there is no default group.
        DistBackendError: NCCL failed.
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
    """Free one group at once (ncclCommAbort)."""
    del world.groups[pg]
    pg.abort()


def end_all(end: Callable[[ProcessGroup], None]) -> None:
    """End every group, the newest first, and remove all entries.

    Raises:
        Exception: the first error; the groups after it are ended too.
    """
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
    """End the groups that a script has left open, so that no rank waits for this one."""
    with contextlib.suppress(Exception):
        end_all(ProcessGroup.leave)


def _invalidate_after_fork() -> None:
    """A child of fork() shares neither the communicators' memory nor their threads."""
    for pg in world.groups:
        pg.forbid("it was made before this process was forked from its parent")
    world.reset()


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_invalidate_after_fork)
