"""Ranges of torch's profiler around every operation, which cost nothing while no profiler runs.

torch has no callback for the start of a profiler. The two functions in which it sets
``torch.autograd.profiler._is_profiler_enabled`` are therefore wrapped, so that operations do not
have to read the flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.autograd import profiler

from pynccl import _C

__all__ = ["show_operations"]


def _follow_profiler() -> None:
    enabled = profiler._is_profiler_enabled
    _C.set_operation_range(profiler.record_function if enabled else None)


def _followed(change: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(change)
    def changed() -> None:
        change()
        _follow_profiler()

    return changed


@functools.cache
def show_operations() -> None:
    """Show the operations of the mirror in torch's profiler, from now on."""
    for name in ("_run_on_profiler_start", "_run_on_profiler_stop"):
        setattr(profiler, name, _followed(getattr(profiler, name)))
    _follow_profiler()
