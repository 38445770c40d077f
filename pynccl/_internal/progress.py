"""A progress bar on standard error, if it is a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

__all__ = ["Progress"]

_WIDTH = 24


class Progress:
    """A progress bar.

    Args:
        file: the output; None is standard error.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._shown = self._file.isatty()

    def __call__(self, done: int, count: int, text: str) -> None:
        """Draw the bar, or remove it when all items are done.

        Args:
            done: the number of completed items.
            count: the total number of items.
            text: the current item.
        """
        if not self._shown:
            return
        full = _WIDTH * done // max(count, 1)
        line = f"[{'#' * full}{'.' * (_WIDTH - full)}] {done}/{count} {text}"
        line = line[: shutil.get_terminal_size().columns - 1]
        self._file.write("\r\x1b[K" + (line if done < count else ""))
        self._file.flush()
