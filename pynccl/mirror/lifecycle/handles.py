"""Reconfiguration by handles: the default group gets the ranks that the caller names.

It is torch's API of ``init_process_group(enable_reconfigure=True)``: the caller finds out which
ranks are there, and gives each of them the handles of all. :func:`pynccl.reconfigure` is the other
way: there the ranks of a group find out themselves.
"""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store

from pynccl import _C
from pynccl.membership import ordered_members
from pynccl.mirror.base.store import broadcast_via_store
from pynccl.mirror.group.comm_stream import run_all
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import DoneWork, Work
from pynccl.mirror.lifecycle.shrink import end_other_groups
from pynccl.mirror.world import group_or_default, world

__all__ = ["_get_reconfigure_handle", "_reconfigure", "_supports_reconfigure", "apply_handles"]


def _supports_reconfigure(group: ProcessGroup | None = None) -> bool:
    """See torch.distributed._supports_reconfigure, available since torch 2.14."""
    return group_or_default(group).supports_reconfigure


def _get_reconfigure_handle(group: ProcessGroup | None = None) -> str:
    """See torch.distributed._get_reconfigure_handle, available since torch 2.14.

    The handle is a text that does not change while the group exists. It admits to the rank: keep it
    among the ranks of the job.
    """
    return group_or_default(group).get_reconfigure_handle()


def _reconfigure(
    uuid: int,
    handles: set[str] | list[str],
    group: ProcessGroup | None = None,
    timeout: timedelta | None = None,
    hints: dict[str, str] | None = None,
) -> Work:
    """Give the default group the ranks of some handles: see torch.distributed._reconfigure.

    All these ranks call it, with the same arguments. The communicators that the group had are
    aborted, and all other groups end. The ranks exchange the unique id of the new communicator
    through the store of init_process_group, which must still exist. A list of handles is in the
    order of the new ranks, a set is sorted. torch.distributed has it since torch 2.14.

    Raises:
        ValueError: the uuid was used before; handles has duplicates, lacks this rank, or contains
            something else; there are hints; there is no default group.
        RuntimeError: the group was not created with ``enable_reconfigure=True``.
        DistStoreError: not all ranks called it before the timeout.
        DistBackendError: a rank has died, or NCCL failed. The group can be reconfigured again.
    """
    opts = SimpleNamespace(uuid=uuid, handles=handles, timeout=timeout, hints=hints)
    return group_or_default(group).reconfigure(opts)


def apply_handles(store: Store, pg: ProcessGroup, opts: Any) -> Work:
    """Do what :func:`_reconfigure` does.

    Args:
        store: of the job.
        pg: the default group.
        opts: has the arguments as attributes.
    """
    if opts.timeout is not None and not isinstance(opts.timeout, timedelta):
        raise TypeError(f"timeout: expected a datetime.timedelta, got {opts.timeout!r}")
    own = pg.get_reconfigure_handle()
    handles = ordered_members(
        opts.uuid, opts.handles, opts.hints, own=own, used=pg.uuids, decode=_address
    )
    addresses = [_address(handle) for handle in handles]
    for comm_stream in pg.comm_streams().values():
        if not comm_stream.comm.closed:
            _C.begin_recovery(comm_stream.comm)  # ranks that wait for this one hear of it
    end_other_groups(pg)
    run_all(comm_stream.abort for comm_stream in pg.give_up("it was reconfigured"))
    rank, size = handles.index(own), len(handles)
    pg.peers.renumber(rank, addresses)
    # Ranks may have made different numbers of groups before, so names and keys begin anew.
    store = PrefixStore(f"reconfigured/{opts.uuid}", store)
    world.store, world.count = store, 1
    pg.renumber(rank, size, opts.uuid, store)
    _C.set_process_rank(rank)
    limit = opts.timeout or pg.timeout
    try:
        _open(pg, limit)
    except BaseException:
        run_all(stream.abort for stream in pg.give_up("its reconfiguration failed"))
        raise
    return DoneWork("reconfigure", limit)


def _open(pg: ProcessGroup, timeout: timedelta) -> None:
    """Wait for the ranks, and make the communicator that need not wait for an operation."""
    device = pg.device_at_once()
    if device is not None:
        pg.open_at_once(timeout)
        return
    presence = pg.peers.presence(pg.ranks)
    broadcast_via_store(pg.store, "reconfigure", pg.rank(), pg.size(), timeout, bytes, presence)


def _address(handle: str) -> list[Any]:
    machine, host, port, token = json.loads(handle)
    bytes.fromhex(token)
    return [machine, host, port, token]
