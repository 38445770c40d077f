"""How the clients' ranks agree on an id, through a file, and how they check a refusal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def share(data: bytes | None, path: str) -> bytes:
    """Put the id into a file on rank 0, which has it; the others pass None and read it there."""
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
    """Call a function that must raise an exception of this kind with this text."""
    try:
        call()
    except kind as error:
        if text in str(error):
            return
        raise
    raise AssertionError(f"there was no {kind.__name__}")
