"""Several operations as one: what is issued in the context goes out in one NCCL group."""

from __future__ import annotations

from contextlib import contextmanager
from typing import NamedTuple

import torch

from pynccl import nccl
from pynccl.mirror.channel import Issue
from pynccl.mirror.process_group import ProcessGroup
from pynccl.mirror.registry import _get_default_group
from pynccl.mirror.work import IllegalWork, Work

__all__ = ["Batch", "_CoalescingManager", "_coalescing_manager"]

_COALESCED = ("all_reduce", "all_gather_single", "reduce_scatter_single")


class _Operation(NamedTuple):
    name: str
    tensor: torch.Tensor
    issue: Issue


class Batch:
    """The operations of one context.

    Args:
        of_all_kinds: whether it takes every operation, or those only that torch coalesces by
            itself.
    """

    def __init__(self, of_all_kinds: bool) -> None:
        self._of_all_kinds = of_all_kinds
        self._operations: list[_Operation] = []
        self._result: list[torch.Tensor] = []

    def takes(self, name: str) -> bool:
        """Whether an operation waits for the end of the context."""
        return self._of_all_kinds or name in _COALESCED

    def add(
        self,
        name: str,
        tensor: torch.Tensor,
        issue: Issue,
        result: list[torch.Tensor],
        async_op: bool,
    ) -> Work | None:
        """Take an operation."""
        self._operations.append(_Operation(name, tensor, issue))
        self._result += result
        return IllegalWork() if async_op else None

    def run(self, pg: ProcessGroup, async_op: bool) -> Work | None:
        """Issue what was taken as one group.

        Raises:
            RuntimeError: without a device, operations of different kinds were taken.
        """
        if not self._operations:
            return None
        names = {operation.name for operation in self._operations}
        if not self._of_all_kinds and len(names) > 1:
            raise RuntimeError(
                "Coalescing manager requires all collectives to be the same type, but got mixed "
                f"types: {names}"
            )
        operations = self._operations

        def issue(comm: nccl.Communicator, stream: int | None) -> None:
            with nccl.group():
                for operation in operations:
                    operation.issue(comm, stream)

        name = f"coalesced {', '.join(sorted(names))}"
        return pg.run(name, operations[0].tensor, issue, self._result, async_op)


class _CoalescingManager:
    """What the context gives: with ``async_ops=True`` its works can be waited for."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def append(self, work: Work | None = None):
        if work:
            self.works.append(work)

    def wait(self):
        for work in self.works:
            work.wait()


@contextmanager
def _coalescing_manager(
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
    async_ops: bool = False,
):
    """Issue what is called in the context as one NCCL group.

    Args:
        group: the group; None is the default one.
        device: takes every operation on such tensors. Without it: all_reduce, all_gather_single
            and reduce_scatter_single, of which there must be one kind only.
        async_ops: whether to leave the waiting to the manager's wait().
    """
    pg = group or _get_default_group()
    if pg._batch is not None:
        raise ValueError("ProcessGroup has non-empty op list at the start of coalescing")
    batch = pg._batch = Batch(of_all_kinds=bool(device))
    manager = _CoalescingManager()
    try:
        yield manager
    finally:
        pg._batch = None
    work = batch.run(pg, async_ops)
    if async_ops:
        manager.append(work)
