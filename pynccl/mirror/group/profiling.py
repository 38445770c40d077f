"""Ranges of torch's profiler around every operation, which cost nothing while no profiler runs.

torch has no callback for the start of a profiler. The two functions in which it sets
``torch.autograd.profiler._is_profiler_enabled`` are therefore wrapped, and the hooks are registered
only while it is set. Operations do not have to read it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from torch.autograd import profiler

from pynccl.mirror.group.hooks import OperationHooks, add_operation_hooks
from pynccl.mirror.group.record import OperationRecord
from pynccl.mirror.group.work import Work

__all__ = ["show_operations"]


class _Ranges:
    """A range named ``pynccl:all_reduce`` from the call of an operation to its return."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._hooks: OperationHooks | None = None

    def follow_profiler(self) -> None:
        """Add the hooks if a profiler runs, else remove them."""
        if not profiler._is_profiler_enabled:
            if self._hooks is not None:
                self._hooks.remove()
                self._hooks = None
        elif self._hooks is None:
            self._hooks = add_operation_hooks(self._begin, self._end)

    def _open(self) -> list[profiler.record_function]:
        ranges: list[profiler.record_function] = self._local.__dict__.setdefault("open", [])
        return ranges

    def _begin(self, record: OperationRecord) -> None:
        begun = profiler.record_function(f"pynccl:{record.kind}")
        begun.__enter__()
        self._open().append(begun)

    def _end(self, record: OperationRecord, work: Work | None, error: BaseException | None) -> None:
        if ranges := self._open():
            ranges.pop().__exit__(None, None, None)


_ranges = _Ranges()


def _followed(change: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(change)
    def changed() -> None:
        change()
        _ranges.follow_profiler()

    return changed


@functools.cache
def show_operations() -> None:
    """Show the operations of the mirror in torch's profiler, from now on."""
    for name in ("_run_on_profiler_start", "_run_on_profiler_stop"):
        setattr(profiler, name, _followed(getattr(profiler, name)))
    _ranges.follow_profiler()
