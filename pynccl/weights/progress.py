"""Progress of a transfer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO, TypeAlias

from pynccl._internal.progress import Progress

__all__ = ["OnProgress", "ProgressBar", "meter"]

OnProgress: TypeAlias = Callable[[int, int], object]  # called with bytes done and total bytes


class ProgressBar:
    """Draws the progress of a transfer on standard error, if that is a terminal.

        sender = WeightSender("0.0.0.0:29600", progress=ProgressBar())

    Args:
        file: the output; None is standard error.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._bar = Progress(file)
        self._began = 0.0

    def __call__(self, done: int, nbytes: int) -> None:
        """Draw the bar; remove it at the end.

        Args:
            done: bytes done; 0 at the beginning.
            nbytes: total bytes.
        """
        now = time.monotonic()
        if done == 0:
            self._began = now
        rate = done / max(now - self._began, 1e-9)
        self._bar(done >> 20, nbytes >> 20, f"MiB, {rate / 1e9:.2f} GB/s")


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
