"""The first argument of launched test functions."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pynccl import testing

if TYPE_CHECKING:
    from pynccl import nccl
    from pynccl.store import Store
    from tests.support.memory import Memory

__all__ = ["Rank", "wait_for"]


class Rank(testing.Rank):
    """A rank with the buffers, streams and events of its provider and device."""

    @property
    def nranks(self) -> int:
        """The world size, under NCCL's name."""
        return self.world_size

    @property
    def memory(self) -> Memory:
        from tests.support.memory import memory_of

        return memory_of(self.provider, self.device)

    def stream(self) -> nccl.Stream:
        from pynccl import nccl

        return nccl.Stream(self.provider, device=self.device)

    def event(self, *, timing: bool = False) -> nccl.Event:
        from pynccl import nccl

        return nccl.Event(self.provider, device=self.device, timing=timing)

    def store(self) -> Store:
        """A store of torch for recover(), shared by the ranks of this launch."""
        from torch._C._distributed_c10d import FileStore

        return FileStore(f"{urlsplit(self.init_method).path}.values", -1)

    def set_event(self, name: str) -> None:
        """Signal other ranks of the launch that wait for this point."""
        Path(self._event(name, self.rank)).touch()

    def wait_event(self, name: str, *ranks: int) -> None:
        """Wait until these ranks have set the event.

        It uses no communicator, so deadlock detection does not see it.
        """
        for rank in ranks:
            wait_for(self._event(name, rank))

    def _event(self, name: str, rank: int) -> str:
        return f"{urlsplit(self.init_method).path}.{name}.{rank}"

    def _finish(self, *, failed: bool) -> None:
        """Also clear failures of the default stream: the next test may run in this process."""
        super()._finish(failed=failed)
        if failed or self.provider != "cuda":
            return
        from pynccl import nccl

        event = self.event()
        event.record(0)
        with contextlib.suppress(nccl.NcclError):
            event.synchronize()
        event.close()


def wait_for(path: str, seconds: float = 30) -> None:
    """Wait until another rank, or the test, has created a file."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"{path} does not exist after {seconds:g} s"
        time.sleep(0.005)
