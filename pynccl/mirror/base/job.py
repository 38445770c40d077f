"""Job: the store of a process group's lifetime, and which ranks have left it or died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from pynccl.mirror.base.errors import DistNetworkError
from pynccl.store import ask

__all__ = ["Job", "Process"]

_ANSWER = 0.5  # seconds for the store to answer a leaving rank


class Process(NamedTuple):
    """The process of a rank.

    Attributes:
        rank: its global rank when the job began.
        machine: its boot id and pid namespace; processes with the same value see each other.
        pid: its process id.
        start: its start time in ticks since boot, because process ids are reused.
    """

    rank: int
    machine: str
    pid: int
    start: str

    @staticmethod
    def own(rank: int) -> Process:
        """Return the Process for the calling process."""
        pid = os.getpid()
        return Process(rank, _machine(), pid, _start(pid))


class Job:
    """The ranks of a group between init_process_group and destroy_process_group.

    Args:
        store: a store shared by the ranks of this job only.
        own: this process.
        processes: the processes of the group's ranks, by rank; empty until they are exchanged.
    """

    def __init__(self, store: Store, own: Process, processes: Sequence[Process] = ()) -> None:
        self.store = store
        self.own = own
        self.processes = processes

    def part(self, ranks: Iterable[int]) -> Job:
        """Return the same job, restricted to some of its ranks."""
        return Job(self.store, self.own, [self.processes[rank] for rank in ranks])

    def gone(self, rank: int) -> str:
        """Return why a rank no longer takes part, or "" if it does or if that is unknown.

        The end of a process is detected only by ranks on the same machine.
        """
        if not self.processes:
            return ""
        process = self.processes[rank]
        if process.machine == self.own.machine and _start(process.pid) != process.start:
            return f"its process {process.pid} has ended"
        with contextlib.suppress(DistNetworkError):
            if self.store.check([f"left/{process.rank}"]):
                return "it has destroyed its groups"
        return ""

    def leave(self) -> None:
        """Notify the other ranks that this one has destroyed its groups."""
        with contextlib.suppress(Exception):  # the store may be gone, or not answer
            ask(lambda _: self.store.set(f"left/{self.own.rank}", "1")).result(_ANSWER)


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
