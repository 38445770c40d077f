"""Resources of this process that could leak: descriptors, threads and mappings."""

from __future__ import annotations

import contextlib
import gc
import os
import re
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


def resident() -> int:
    """The memory of this process in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_in(name: str) -> int:
    """The memory of this process in bytes in mappings whose line contains a name."""
    with open("/proc/self/smaps") as smaps:
        maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps.read(), flags=re.MULTILINE)
    sizes = [re.search(r"^Rss: +(\d+) kB", one, re.M) for one in maps if name in one]
    return sum(1024 * int(size[1]) for size in sizes if size)


def check(before: dict[str, int]) -> None:
    """Fail if every sample shows more resources than before, while threads have time to end.

    A remaining thread may briefly open a descriptor to check a process.
    """
    deadline = time.monotonic() + _END
    gc.collect()
    while any((after := count())[name] > held for name, held in before.items()):
        assert time.monotonic() < deadline, f"{before} became {after}: {_descriptors()}"
        time.sleep(0.05)


def _descriptors() -> dict[str, str]:
    """The open files of this process, by descriptor."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found
