"""Job: the store of a process group's lifetime, and which ranks have left it or died."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch.distributed.distributed_c10d import Store

from pynccl._internal.processes import Process, set_within_limit
from pynccl.mirror.base.errors import DistNetworkError

__all__ = ["Job"]


class Job:
    """The ranks of a group between init_process_group and destroy_process_group.

    Args:
        store: a store shared by the ranks of this job only.
        rank: the global rank of this process when the job began.
        ranks: the global ranks of the group's ranks when the job began.
        processes: the processes by these global ranks; empty until they are exchanged.
    """

    def __init__(
        self, store: Store, rank: int, ranks: Sequence[int], processes: list[Process] | None = None
    ) -> None:
        self.store = store
        self.processes = [] if processes is None else processes
        self._rank = rank
        self._ranks = ranks

    def part(self, ranks: Sequence[int]) -> Job:
        """Return the same job, restricted to some of its ranks."""
        left = [self._ranks[rank] for rank in ranks]
        return Job(self.store, self._rank, left, self.processes)

    def gone(self, rank: int) -> str:
        """Return why a rank no longer takes part, or "" if it does or if that is unknown."""
        if not self.processes:
            return ""
        global_rank = self._ranks[rank]
        if end := self.processes[global_rank].end():
            return end
        with contextlib.suppress(DistNetworkError):
            if self.store.check([f"left/{global_rank}"]):
                return "it has destroyed its groups"
        return ""

    def leave(self) -> None:
        """Notify the other ranks that this one has destroyed its groups."""
        set_within_limit(self.store, f"left/{self._rank}", "1")
