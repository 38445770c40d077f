"""Exchanges reconfiguration handles outside the job, as the caller must do."""

from __future__ import annotations

import time
from pathlib import Path

_LIMIT = 60.0  # seconds


def exchange_handles(folder: str, uuid: int, own: str, key: int, ranks: int) -> list[str]:
    """Publish this rank's handle, and wait for those of the other ranks.

    Args:
        folder: a folder shared by the ranks.
        uuid: the id of the reconfiguration.
        own: the handle of this rank.
        key: the position of this rank among the others.
        ranks: the number of ranks.

    Returns:
        The handles of all ranks, by key.
    """
    file = Path(folder) / f"{uuid} {key}"
    part = file.with_suffix(".part")
    part.write_text(own)
    part.rename(file)
    until = time.monotonic() + _LIMIT
    while time.monotonic() < until:
        found = sorted(path for path in Path(folder).glob(f"{uuid} *") if not path.suffix)
        if len(found) == ranks:
            return [path.read_text() for path in found]
        time.sleep(0.01)
    raise AssertionError(f"{found} of {ranks}")
