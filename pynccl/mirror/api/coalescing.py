"""The coalescing manager: operations called in its context are issued as one NCCL group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pynccl.mirror.group.batch import Batch
from pynccl.mirror.group.process_group import ProcessGroup
from pynccl.mirror.group.work import Work
from pynccl.mirror.world import _get_default_group

__all__ = ["_CoalescingManager", "_coalescing_manager"]


class _CoalescingManager:
    """See torch.distributed._CoalescingManager."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def append(self, work: Work | None = None):
        """Add a Work to wait for, if any."""
        if work:
            self.works.append(work)

    def wait(self):
        """Wait for all works."""
        for work in self.works:
            work.wait()


@contextmanager
def _coalescing_manager(
    group: ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
) -> Iterator[_CoalescingManager]:
    """See torch.distributed._coalescing_manager. Issues the operations as one NCCL group.

    With a device, all operations are collected. Without one, they must be of one kind (all_reduce,
    all_gather_single or reduce_scatter_single), else RuntimeError is raised.
    """
    pg = group or _get_default_group()
    if pg._batch is not None:
        raise ValueError("ProcessGroup has non-empty op list at the start of coalescing")
    batch = pg._batch = Batch(any_kind=bool(device))
    manager = _CoalescingManager()
    try:
        yield manager
    finally:
        pg._batch = None
    call = batch.coalesced(async_ops)
    work = None if call is None else pg.issue(call)
    if async_ops:
        manager.append(work)
