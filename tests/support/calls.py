"""Which Python functions a block of code calls."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def python_calls() -> Iterator[Counter[str]]:
    """Count the calls of Python functions in this thread, by the name of the function."""
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counts[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(None)
