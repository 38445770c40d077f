"""Hooks on every operation of the mirror: synchronous, asynchronous, batched and point-to-point.

Every operation, including the fast path, passes through ``issued()`` of
csrc/python/mirror/comm_stream.h. Without hooks it only reads a flag; an OperationRecord is created
only for hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from pynccl import _C
from pynccl.mirror.group.comm_stream import CommStream
from pynccl.mirror.group.record import OperationRecord
from pynccl.mirror.group.work import Work

__all__ = ["After", "Before", "OnAbort", "OperationHooks", "add_operation_hooks"]

Before: TypeAlias = Callable[[OperationRecord], object]
After: TypeAlias = Callable[[OperationRecord, Work | None, BaseException | None], object]
OnAbort: TypeAlias = Callable[[CommStream, str], object]


class OperationHooks:
    """Registered hooks. As a context manager, it removes them on exit."""

    def __init__(self, number: int) -> None:
        self._number = number

    def remove(self) -> None:
        """Remove the hooks. Further calls have no effect."""
        _C.remove_operation_hooks(self._number)

    def __enter__(self) -> OperationHooks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def add_operation_hooks(
    before: Before | None = None, after: After | None = None, on_abort: OnAbort | None = None
) -> OperationHooks:
    """Register functions that are called around every operation of every group.

    Hooks run in the thread that issues the operation, in the order of registration. They must not
    issue operations and must not keep the record, which refers to the tensors. An exception in a
    hook is passed to ``sys.unraisablehook`` and does not affect the operation.

    Args:
        before: ``before(record)``, before NCCL is called.
        after: ``after(record, work, error)``, after NCCL was called. work is the Work of an
            asynchronous operation, else None; error is the raised exception, else None. A
            synchronous operation on CPUs is complete by then, any other is enqueued.
        on_abort: ``on_abort(comm_stream, reason)``, before a communicator is aborted because of a
            timeout or because its group is aborted. Called from any thread.

    Returns:
        The registration; call its ``remove()``, or use it as a context manager.
    """
    return OperationHooks(_C.add_operation_hooks(before, after, on_abort))
