"""A communicator with the stream of its asynchronous operations.

A process group has one for each kind of device; two ranks that send to each other have one for
each direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import torch

from pynccl import _C, nccl
from pynccl.errors import DriverError, NcclError
from pynccl.mirror import watchdog
from pynccl.mirror.errors import BackendError, BackendTimeoutError, translate

__all__ = ["Channel", "Issue"]

# Calls NCCL: takes the communicator and the stream as collectives take it.
Issue: TypeAlias = Callable[[nccl.Communicator, int | None], None]

_GRACE = 2.0  # seconds that operations nobody waited for have left when their group ends


class Channel(_C.Channel):
    """One communicator, its queue and its timeout."""

    def __init__(
        self,
        comm: nccl.Communicator,
        device: torch.device,
        timeout: timedelta,
        *,
        high_priority: bool = False,
    ) -> None:
        super().__init__(comm, -1 if high_priority else 0)
        self._communicator = comm  # so that `comm` always is this object
        self.device = device
        self.rank = comm.rank
        # Where a call without a stream lasts until the operation is done.
        self.blocks = comm.library.memory == "host"
        self.timeout = timeout.total_seconds()
        self._operators: dict[tuple[object, torch.dtype], nccl.RedOp] = {}
        self._expired = ""
        if self.blocks:
            watchdog.watch(self)

    def pre_mul_sum(self, factor: Any, dtype: torch.dtype) -> nccl.RedOp:
        """The operator of a factor; those of numbers are made once."""
        if isinstance(factor, torch.Tensor):
            return self.comm.pre_mul_sum(factor, dtype)
        key = (factor, dtype)
        if key not in self._operators:
            number = factor if dtype.is_floating_point or dtype.is_complex else int(factor)
            self._operators[key] = self.comm.pre_mul_sum(number, dtype)
        return self._operators[key]

    def error(self, name: str) -> BackendError | None:
        """What the communicator has failed with in the background."""
        if self._expired:
            return self.timed_out(name)
        if self.comm.closed:
            return None
        error = self.comm.async_error()
        return None if error is None else self.explain(name, error)

    def explain(self, name: str, error: NcclError | DriverError) -> BackendError:
        """What is raised for an operation in which NCCL or the driver failed."""
        return self.timed_out(name) if self._expired else translate(error)

    def timed_out(self, name: str) -> BackendError:
        """What is raised for an operation on a channel that was given up."""
        text = f"{name} on rank {self.rank}: {self._expired}"
        return BackendTimeoutError(text, 8, name, self.rank)

    def progress(self) -> tuple[int, int | None] | None:
        """What is under way, as a value that changes when it ends; None if nothing is."""
        call, oldest = self.call_under_way(), self.oldest()
        return (call, oldest) if call or oldest is not None else None

    def expire(self) -> None:
        """Give up what is under way: it took longer than the timeout."""
        self._expired = (
            f"the operation Timed out after {self.timeout:g} seconds, the timeout of its group; "
            "not every rank has taken part"
        )
        self.refuse()
        self.comm.abort()

    def close(self) -> None:
        """Let what was issued finish, and free the communicator."""
        try:
            if self._drained():
                self._operators.clear()
                self.comm.close()
            else:
                self.comm.abort()
        except (NcclError, DriverError) as error:
            raise translate(error) from None

    def abort(self) -> None:
        """Free the communicator at once."""
        self.comm.abort()

    def _drained(self) -> bool:
        """Whether the queue is empty, after a moment's grace."""
        until = time.monotonic() + min(_GRACE, self.timeout)
        while self.oldest() is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True
