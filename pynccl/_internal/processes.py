"""Process: identifies the process of a rank, so that other ranks notice its end."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from pynccl.store import ask

__all__ = ["Process", "publish", "set_within_limit"]

_ANSWER = 0.5  # seconds for the store to answer


class Process(NamedTuple):
    """A process.

    Attributes:
        machine: its boot id and pid namespace; processes with the same value see each other.
        pid: its process id.
        start: its start time in ticks since boot, because process ids are reused.
    """

    machine: str
    pid: int
    start: str

    @staticmethod
    def own() -> Process:
        """Return the Process for the calling process."""
        pid = os.getpid()
        return Process(_machine(), pid, _start(pid))

    def end(self) -> str:
        """Return the text "its process ... has ended", or "" if it is alive or that is unknown.

        The end of a process is detected only by processes on the same machine.
        """
        if self.machine != _machine() or _start(self.pid) == self.start:
            return ""
        return f"its process {self.pid} has ended"


def publish(store: Store, rank: int) -> Callable[[int], str]:
    """Publish the calling process as that of a rank.

    Args:
        store: a store shared by the ranks, used for this function alone.
        rank: the rank of the calling process.

    Returns:
        A function that calls Process.end() for a rank, and returns "" for one that has not
        published its process.
    """
    set_within_limit(store, str(rank), json.dumps(Process.own()))

    def end_of(other: int) -> str:
        key = str(other)
        return Process(*json.loads(store.get(key))).end() if store.check([key]) else ""

    return end_of


def set_within_limit(store: Store, key: str, value: str) -> None:
    """Set a key, unless the store is gone or does not answer."""
    with contextlib.suppress(Exception):
        ask(lambda _: store.set(key, value)).result(_ANSWER)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> str:
    """Return the start time of a process, or "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state in "ZX" else start
