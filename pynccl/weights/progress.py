"""Progress of a transfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["OnProgress", "meter"]

OnProgress: TypeAlias = Callable[[int, int], object]  # called with bytes done and total bytes


def meter(progress: OnProgress | None, nbytes: int) -> Callable[[int], object]:
    """Return a function that is called with the bytes of each step, and calls progress with the
    sum.

    Args:
        progress: None if progress is not reported.
        nbytes: of all steps.
    """
    if progress is None:
        return lambda _nbytes: None
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done += more
        progress(done, nbytes)

    progress(0, nbytes)
    return add
