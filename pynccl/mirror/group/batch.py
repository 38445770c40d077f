"""Batch: the operations that a coalescing manager collects, to go out as one NCCL group."""

from __future__ import annotations

import torch

from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import IllegalWork, Work

__all__ = ["Batch"]

_COALESCED = ("all_reduce", "all_gather_single", "reduce_scatter_single")


class Batch:
    """The operations of one context.

    Args:
        takes_all_kinds: whether it takes every operation, or only those that torch coalesces
            without a device.
    """

    def __init__(self, takes_all_kinds: bool) -> None:
        self._takes_all_kinds = takes_all_kinds
        self._records: list[OperationRecord] = []

    def takes(self, kind: str) -> bool:
        """Whether an operation of this kind waits for the end of the context."""
        return self._takes_all_kinds or kind in _COALESCED

    def add(self, record: OperationRecord) -> Work | None:
        """Take an operation.

        Returns:
            For an asynchronous one a Work that cannot be waited for.
        """
        self._records.append(record)
        return IllegalWork() if record.async_op else None

    def coalesced(self, async_op: bool) -> OperationRecord | None:
        """All operations as one; None if there are none.

        Raises:
            RuntimeError: without a device, operations of different kinds were taken.
        """
        if not self._records:
            return None
        kinds = {record.kind for record in self._records}
        if not self._takes_all_kinds and len(kinds) > 1:
            raise RuntimeError(
                "Coalescing manager requires all collectives to be the same type, but got mixed "
                f"types: {kinds}"
            )
        calls: list[Call] = []
        result: list[torch.Tensor] = []
        for record in self._records:
            calls += record.calls
            result += record.result
        kind = f"coalesced {', '.join(sorted(kinds))}"
        return OperationRecord(kind, self._records[0].tensor, calls, result, async_op)
