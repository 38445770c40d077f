"""The resources of this process that could leak: descriptors, threads and mappings."""

from __future__ import annotations

import gc
import os
import time

_END = 5.0  # seconds for threads to end


def count() -> dict[str, int]:
    with open("/proc/self/maps") as maps:
        mappings = sum(
            "memfd:" in line and ("hostnccl" in line or "ncclMemAlloc" in line) for line in maps
        )
    return {
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared memory": mappings,
    }


def check(before: dict[str, int]) -> None:
    """Fail where there is more than before, after threads had time to end."""
    deadline = time.monotonic() + _END
    gc.collect()
    while any(count()[name] > held for name, held in before.items()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    after = count()
    assert all(after[name] <= before[name] for name in before), f"{before} became {after}"
