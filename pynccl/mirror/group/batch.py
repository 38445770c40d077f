"""Batch: operations collected by a coalescing manager and issued as one NCCL group."""

from __future__ import annotations

from itertools import chain

from pynccl import nccl
from pynccl.mirror.group.call import Call
from pynccl.mirror.group.work import IllegalWork, Work

__all__ = ["Batch"]

_COALESCED = ("all_reduce", "all_gather_single", "reduce_scatter_single")


class Batch:
    """The operations of one coalescing manager.

    Args:
        any_kind: whether to collect every operation, or only those that torch coalesces without a
            device.
    """

    def __init__(self, any_kind: bool) -> None:
        self._any_kind = any_kind
        self._calls: list[Call] = []

    def accepts(self, kind: str) -> bool:
        """Return whether operations of this kind are collected."""
        return self._any_kind or kind in _COALESCED

    def add(self, call: Call) -> Work | None:
        """Add an operation.

        Returns:
            For an asynchronous operation, a Work that cannot be waited for.
        """
        self._calls.append(call)
        return IllegalWork() if call.async_op else None

    def coalesced(self, async_op: bool) -> Call | None:
        """Return all operations as one, or None if there are none.

        Raises:
            RuntimeError: operations of different kinds were added without a device.
        """
        calls = self._calls
        if not calls:
            return None
        kinds = {call.kind for call in calls}
        if not self._any_kind and len(kinds) > 1:
            raise RuntimeError(
                "Coalescing manager requires all collectives to be the same type, but got mixed "
                f"types: {kinds}"
            )

        def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
            with nccl.group():
                for call in calls:
                    call.enqueue(comm, stream)

        kind = f"coalesced {', '.join(sorted(kinds))}"
        result = list(chain.from_iterable(call.result for call in calls))
        return Call(kind, calls[0].tensor, enqueue, result, async_op)
