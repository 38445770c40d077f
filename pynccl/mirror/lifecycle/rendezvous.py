"""Barriers through the store after groups were made, where the environment asks for them."""

from __future__ import annotations

import os

from pynccl.mirror.base.store import broadcast_via_store
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.world import world

__all__ = ["wait_for_creation", "wait_for_members"]


def _is_asked_for() -> bool:
    return int(os.environ.get("TORCH_DIST_INIT_BARRIER", "0")) == 1


def wait_for_creation(pg: ProcessGroup) -> None:
    """Wait for the other ranks of a new group where ``TORCH_DIST_INIT_BARRIER=1``."""
    if _is_asked_for():
        name = f"barrier after init {pg.group_name}"
        presence = pg.peers.presence(pg.ranks)
        broadcast_via_store(pg.store, name, pg.rank(), pg.size(), pg.timeout, bytes, presence)


def wait_for_members(name: str, default: ProcessGroup) -> None:
    """Wait for all ranks of the job, in the new group or not, where the environment asks for it."""
    if _is_asked_for():
        assert world.store is not None
        rank, size = default.rank(), default.size()
        presence = default.peers.presence(default.ranks)
        name = f"new group {name}"
        broadcast_via_store(world.store, name, rank, size, default.timeout, bytes, presence)
