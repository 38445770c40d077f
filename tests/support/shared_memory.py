"""The entries of /dev/shm, and those that no process uses anymore."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_FOLDER = Path("/dev/shm")
_OTHERS = 5.0  # seconds for other programs that are creating or removing entries
# Of multiprocessing, MPICH, torch, and NCCL, which leaves those of a killed rank.
_OF_OTHERS = ("sem.mp-", "mpich_shm_", "torch_", "nccl-")


def entries() -> set[str]:
    return {name for name in os.listdir(_FOLDER) if not name.startswith(_OF_OTHERS)}


def _in_use(name: str) -> bool:
    """Whether a living process maps the entry: it then belongs to another program."""
    path = str(_FOLDER / name)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if path in maps.read_text():
                return True
    return False


def left_behind(before: set[str]) -> set[str]:
    """The new entries that no living process uses."""
    deadline = time.monotonic() + _OTHERS
    while True:
        left = {name for name in entries() - before if not _in_use(name)}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)
