"""Job: the store between init and destroy, and which ranks have left or have ended."""

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

_ANSWER = 0.5  # seconds for the store to answer a rank that leaves


class Process(NamedTuple):
    """The process of a rank.

    Attributes:
        rank: its global rank when the job began.
        machine: its boot and its pid namespace; processes with the same value see each other.
        pid: its process id.
        start: when it started, in ticks since the boot, since process ids are used again.
    """

    rank: int
    machine: str
    pid: int
    start: str

    @staticmethod
    def own(rank: int) -> Process:
        """This process."""
        pid = os.getpid()
        return Process(rank, _machine(), pid, _start(pid))


class Job:
    """What lies between init_process_group and destroy_process_group, for the ranks of a group.

    Args:
        store: common to the ranks, and to no other job.
        own: this process.
        processes: of the ranks of the group, in their order.

    Attributes:
        store: as given.
        own: as given.
        processes: as given.
    """

    def __init__(self, store: Store, own: Process, processes: Sequence[Process] = ()) -> None:
        self.store = store
        self.own = own
        self.processes = processes

    def part(self, ranks: Iterable[int]) -> Job:
        """The same job, for a group of some ranks of this one's."""
        return Job(self.store, self.own, [self.processes[rank] for rank in ranks])

    def gone(self, rank: int) -> str:
        """Why a rank of the group no longer takes part; "" if it does, or if that is not known.

        The end of a process is known on its machine.
        """
        process = self.processes[rank]
        if process.machine == self.own.machine and _start(process.pid) != process.start:
            return f"its process {process.pid} has ended"
        with contextlib.suppress(DistNetworkError):
            if self.store.check([f"left/{process.rank}"]):
                return "it has destroyed its groups"
        return ""

    def leave(self) -> None:
        """Let the other ranks know that this one has destroyed its groups."""
        with contextlib.suppress(Exception):  # the store may be gone, or never answer
            ask(lambda _: self.store.set(f"left/{self.own.rank}", "1")).result(_ANSWER)


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> str:
    """When a process started; "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start = fields[0], fields[19]
    return "" if state in "ZX" else start
