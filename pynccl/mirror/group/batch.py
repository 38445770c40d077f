"""Batch: operations collected by a coalescing manager and issued as one NCCL group."""

from __future__ import annotations

import torch

from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import IllegalWork, Work

__all__ = ["Batch"]

_COALESCED = ("all_reduce", "all_gather_single", "reduce_scatter_single")


class Batch:
    """The operations of one coalescing manager.

    Args:
        takes_all_kinds: whether to collect every operation, or only those that torch coalesces
            without a device.
    """

    def __init__(self, takes_all_kinds: bool) -> None:
        self._takes_all_kinds = takes_all_kinds
        self._records: list[OperationRecord] = []

    def takes(self, kind: str) -> bool:
        """Return whether operations of this kind are collected."""
        return self._takes_all_kinds or kind in _COALESCED

    def add(self, record: OperationRecord) -> Work | None:
        """Add an operation.

        Returns:
            For an asynchronous operation, a Work that cannot be waited for.
        """
        self._records.append(record)
        return IllegalWork() if record.async_op else None

    def coalesced(self, async_op: bool) -> OperationRecord | None:
        """Return all operations as one, or None if there are none.

        Raises:
            RuntimeError: operations of different kinds were added without a device.
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
