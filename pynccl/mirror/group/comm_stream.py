"""CommStream: one communicator with the stream of its asynchronous operations and its timeout.

A process group has one for each type of device; two ranks that send to each other have one for
each direction.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch

from pynccl import _C, nccl
from pynccl.errors import DriverError, NcclError
from pynccl.mirror.base import watchdog
from pynccl.mirror.base.errors import BackendError, BackendTimeoutError, translate
from pynccl.mirror.group.record import Call, OperationRecord
from pynccl.mirror.group.work import Work

__all__ = ["CommStream"]

_GRACE = 2.0  # seconds for operations that were not waited for, when their group is destroyed


class CommStream(_C.CommStream):
    """One communicator, its communication stream and its timeout.

    Args:
        comm: the communicator.
        device: of its tensors.
        timeout: of each operation, on CPUs.
        high_priority: the priority of the stream.
    """

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
        # Whether a call without a stream blocks until the operation is done.
        self.blocks = comm.library.memory == "host"
        self.timeout = timeout.total_seconds()
        self._operators: dict[tuple[object, torch.dtype], nccl.RedOp] = {}
        self._expired = ""
        if self.blocks:
            watchdog.watch(self)

    def pre_mul_sum(self, factor: Any, dtype: torch.dtype) -> nccl.RedOp:
        """The operator that multiplies by a factor first; made once for each number."""
        if isinstance(factor, torch.Tensor):
            return self.comm.pre_mul_sum(factor, dtype)
        key = (factor, dtype)
        if key not in self._operators:
            number = factor if dtype.is_floating_point or dtype.is_complex else int(factor)
            self._operators[key] = self.comm.pre_mul_sum(number, dtype)
        return self._operators[key]

    @property
    def closed(self) -> bool:
        """Whether the communicator is closed."""
        return self.comm.closed

    def error(self, kind: str) -> BackendError | None:
        """The error of the communicator, for an asynchronous operation of this kind."""
        if self._expired:
            return self.timed_out(kind)
        if self.comm.closed:
            return None
        error = self.comm.async_error()
        return None if error is None else self.explain(kind, error)

    def explain(self, kind: str, error: NcclError | DriverError) -> BackendError:
        """The exception to raise for an operation in which NCCL or the driver failed."""
        return self.timed_out(kind) if self._expired else translate(error)

    def timed_out(self, kind: str) -> BackendError:
        """The exception to raise for an operation after one has timed out."""
        text = f"{kind} on rank {self.rank}: {self._expired}"
        return BackendTimeoutError(text, 8, kind, self.rank)

    def progress(self) -> tuple[int, int | None] | None:
        """What is under way, as a value that changes when it ends; None if nothing is."""
        call, oldest = self.call_under_way(), self.oldest()
        return (call, oldest) if call or oldest is not None else None

    def expire(self) -> None:
        """Abort what is under way: it took longer than the timeout."""
        self._expired = (
            f"the operation Timed out after {self.timeout:g} seconds, the timeout of its group; "
            "not every rank has taken part"
        )
        self.refuse()
        self.abort(self._expired)

    def close(self) -> None:
        """Let what was issued finish, and free the communicator."""
        try:
            if self._drained():
                self._operators.clear()
                self.comm.close()
            else:
                self.abort("its group was destroyed while operations were under way")
        except (NcclError, DriverError) as error:
            raise translate(error) from None

    def abort(self, reason: str = "its group was aborted") -> None:
        """Free the communicator at once.

        Args:
            reason: for the hooks.
        """
        _C.notify_abort(self, reason)
        self.comm.abort()

    def _drained(self) -> bool:
        """Whether the queue is empty, at most a grace period from now."""
        until = time.monotonic() + min(_GRACE, self.timeout)
        while self.oldest() is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True


_C.set_operation_classes(Work, OperationRecord, Call)
