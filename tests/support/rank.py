"""What the tests' functions get as their first argument when they are launched."""

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
    from tests.support.memory import Memory

__all__ = ["Rank", "wait_for"]


class Rank(testing.Rank):
    """A rank with buffers, streams and events of its provider on its device."""

    @property
    def nranks(self) -> int:
        """The world size, by NCCL's name."""
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

    def set_event(self, name: str) -> None:
        """Record that this rank has reached a point that others of its launch wait for."""
        Path(self._event(name, self.rank)).touch()

    def wait_event(self, name: str, *ranks: int) -> None:
        """Wait until these ranks have set the event. It uses no communicator: not even a deadlock
        detector knows of it.
        """
        for rank in ranks:
            wait_for(self._event(name, rank))

    def _event(self, name: str, rank: int) -> str:
        return f"{urlsplit(self.init_method).path}.{name}.{rank}"

    def _finish(self, *, failed: bool) -> None:
        """Take the failures of the default stream, too: the next test may be in this process."""
        super()._finish(failed=failed)
        if failed or self.provider != "cuda":
            return
        from pynccl import nccl

        event = self.event()
        event.record(0)
        with contextlib.suppress(nccl.NcclError):
            event.synchronize()
        event.close()


def wait_for(path: str) -> None:
    """Wait until a file exists: for a rank that continues when another one has made it."""
    deadline = time.monotonic() + 30
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"{path} was not made"
        time.sleep(0.005)
