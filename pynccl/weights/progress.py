"""How much of a transfer is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO, TypeAlias

from pynccl._internal.progress import Progress

__all__ = ["OnProgress", "ProgressBar", "meter"]

OnProgress: TypeAlias = Callable[[int, int], object]  # of the bytes done, and of all


class ProgressBar:
    """Draws a transfer on standard error, where that is a terminal.

        sender = WeightSender("0.0.0.0:29600", progress=ProgressBar())

    Args:
        file: where to draw; None is standard error.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._bar = Progress(file)
        self._began = 0.0

    def __call__(self, done: int, nbytes: int) -> None:
        """Draw it; at the end, remove it.

        Args:
            done: the bytes that are done; 0 at the beginning.
            nbytes: of all.
        """
        now = time.monotonic()
        if done == 0:
            self._began = now
        rate = done / max(now - self._began, 1e-9)
        self._bar(done >> 20, nbytes >> 20, f"MiB, {rate / 1e9:.2f} GB/s")


def meter(progress: OnProgress | None, nbytes: int) -> Callable[[int], object]:
    """A function that is called with the bytes of each step, and calls progress with all of them.

    Args:
        progress: None: nobody wants to know.
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
