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
    """The coalescing manager; with ``async_ops=True``, wait() waits for its works."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def append(self, work: Work | None = None):
        """Add a Work to wait for.

        Args:
            work: the Work; None adds nothing.
        """
        if work:
            self.works.append(work)

    def wait(self):
        """Wait for all works, as :meth:`Work.wait` does without a timeout.

        Raises:
            DistBackendError: an operation failed.
        """
        for work in self.works:
            work.wait()


@contextmanager
def _coalescing_manager(
    group: ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
) -> Iterator[_CoalescingManager]:
    """Issue the operations called in the context as one NCCL group (ncclGroupStart, ncclGroupEnd).

    With a device, all operations on its tensors are collected. Without one, all operations must be
    of one kind (all_reduce, all_gather_single or reduce_scatter_single), else RuntimeError is
    raised.

    Args:
        group: the group; None is the default group.
        device: the device of the tensors.
        async_ops: whether the caller waits by the manager's wait().

    Yields:
        The manager.

    Raises:
        ValueError: the group is already in such a context.
    """
    pg = group or _get_default_group()
    if pg._batch is not None:
        raise ValueError("ProcessGroup has non-empty op list at the start of coalescing")
    batch = pg._batch = Batch(takes_all_kinds=bool(device))
    manager = _CoalescingManager()
    try:
        yield manager
    finally:
        pg._batch = None
    record = batch.coalesced(async_ops)
    work = None if record is None else pg.issue(record)
    if async_ops:
        manager.append(work)
