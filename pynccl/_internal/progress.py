"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

__all__ = ["Progress"]

_WIDTH = 24


class Progress:
    """Draws how much is done.

    Args:
        file: where to; None is standard error.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._shown = self._file.isatty()

    def __call__(self, done: int, count: int, text: str) -> None:
        """Draw it; at the end, remove it.

        Args:
            done: how many are done.
            count: of how many.
            text: what runs now.
        """
        if not self._shown:
            return
        full = _WIDTH * done // max(count, 1)
        line = f"[{'#' * full}{'.' * (_WIDTH - full)}] {done}/{count} {text}"
        line = line[: shutil.get_terminal_size().columns - 1]
        self._file.write("\r\x1b[K" + (line if done < count else ""))
        self._file.flush()
