"""Functions of the clients: share an id through a file, and check an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def share(data: bytes | None, path: str) -> bytes:
    """Write the id to a file on rank 0; the other ranks pass None and read the file."""
    file = Path(path)
    if data is not None:
        part = file.with_suffix(".part")
        part.write_bytes(data)
        os.replace(part, file)
    deadline = time.monotonic() + 30
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not appear")
        time.sleep(0.01)
    return file.read_bytes()


def refused(call: Callable[[], object], kind: type[Exception], text: str) -> None:
    """Check that a call raises this exception, with this text."""
    try:
        call()
    except kind as error:
        if text in str(error):
            return
        raise
    raise AssertionError(f"there was no {kind.__name__}")
