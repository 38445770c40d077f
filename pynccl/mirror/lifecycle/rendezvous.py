"""Optional barriers through the store after creating groups (``TORCH_DIST_INIT_BARRIER=1``)."""

from __future__ import annotations

import os

from torch.distributed.distributed_c10d import Store

from pynccl.mirror.base.store import broadcast_via_store
from pynccl.mirror.group.process_group import ProcessGroup

__all__ = ["wait_for_creation", "wait_for_members"]


def _is_asked_for() -> bool:
    return int(os.environ.get("TORCH_DIST_INIT_BARRIER", "0")) == 1


def wait_for_creation(pg: ProcessGroup) -> None:
    """Wait for the other ranks of a new group if ``TORCH_DIST_INIT_BARRIER=1``."""
    if _is_asked_for():
        name = f"barrier after init {pg.group_name}"
        _wait(pg.store, name, pg)


def wait_for_members(name: str, default: ProcessGroup) -> None:
    """Wait for all ranks of the job, even outside the new group, if the variable is set."""
    if _is_asked_for():
        _wait(default.job.store, f"new group {name}", default)


def _wait(store: Store, name: str, pg: ProcessGroup) -> None:
    broadcast_via_store(store, name, pg.rank(), range(pg.size()), pg.timeout, bytes, pg.job.gone)
