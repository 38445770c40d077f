"""destroy_process_group, and the cleanup of groups at process exit and after fork()."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from functools import partial

from pynccl import _C
from pynccl.mirror.base.job import Job
from pynccl.mirror.group.comm_stream import CommStream, close_all, run_all
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.world import NonMember, _rank_not_in_group, is_registered, world

__all__ = [
    "destroy_process_group",
]


def destroy_process_group(group: ProcessGroup | NonMember | None = None) -> None:
    """See torch.distributed.destroy_process_group (ncclCommFinalize, ncclCommDestroy).

    Pending operations are finished first. On GPUs, they are aborted after the group's timeout, and
    DistBackendError is raised. On CPUs, asynchronous operations that were not waited for are
    aborted after 2 seconds, or after the group's timeout if that is shorter. Messages sent before
    the sender destroyed its groups can still be received.
    """
    if _rank_not_in_group(group):
        return
    pg = world.default if group is None else group
    if pg is None:
        raise AssertionError("Process group cannot be None")
    if not is_registered(pg):
        raise ValueError("Invalid process group specified")
    if pg is not world.default:
        del world.groups[pg]
        pg.shutdown()
        return
    _destroy_all()


def _destroy_all() -> None:
    """Destroy all groups together, and reset the world."""
    groups, job = _remove_all()
    comm_streams: list[CommStream] = []

    def detach(pg: ProcessGroup) -> None:
        comm_streams.extend(pg.detach("it was destroyed"))

    detaches = [partial(detach, pg) for pg in groups]
    run_all([*detaches, lambda: close_all(comm_streams), *_leaving(job)])


def abort_process_group(pg: ProcessGroup) -> None:
    """Abort one group (ncclCommAbort)."""
    del world.groups[pg]
    pg.abort()


def end_all(end: Callable[[ProcessGroup], None]) -> None:
    """End every group, newest first, and reset the world.

    Raises:
        Exception: the first error. The remaining groups are ended nevertheless.
    """
    groups, job = _remove_all()
    run_all([*(partial(end, pg) for pg in groups), *_leaving(job)])


def _remove_all() -> tuple[list[ProcessGroup], Job | None]:
    """Reset the world, and return its groups, newest first, and the job."""
    groups = sorted(world.groups, key=world.groups.__getitem__, reverse=True)
    job = world.default.job if world.default else None
    world.reset()
    return groups, job


def _leaving(job: Job | None) -> list[Callable[[], None]]:
    leaving = [] if job is None else [job.leave]
    return [*leaving, lambda: _C.set_process_rank(None)]


def _leave_at_exit() -> None:
    """End the groups that a script has not destroyed, so that no rank waits for this one."""
    with contextlib.suppress(Exception):
        end_all(ProcessGroup.leave)


def _invalidate_after_fork() -> None:
    """Invalidate all groups: a forked child shares neither their memory nor their threads."""
    for pg in world.groups:
        pg.disable("it was created before this process was forked from its parent")
    world.reset()
    _C.set_process_rank(None)


atexit.register(_leave_at_exit)
os.register_at_fork(after_in_child=_invalidate_after_fork)
