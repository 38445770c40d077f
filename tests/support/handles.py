"""Exchanges the handles of a reconfiguration outside of the job, as its caller has to."""

from __future__ import annotations

import time
from pathlib import Path

_LIMIT = 60.0  # seconds


def exchange_handles(folder: str, uuid: int, own: str, key: int, ranks: int) -> list[str]:
    """Give out the own handle, and wait for those of the other ranks.

    Args:
        folder: common to the ranks.
        uuid: of the reconfiguration.
        own: the handle of this rank.
        key: the place of this rank among the others.
        ranks: how many there are.

    Returns:
        The handles of all ranks, by their keys.
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
