"""CommStream: a communicator with its timeout and the stream of its asynchronous operations.

A process group has one per device type. Two ranks that send to each other outside a batch have one
per direction.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from pynccl import _C, nccl
from pynccl.errors import DriverError, NcclError
from pynccl.mirror.base.checks import Arguments
from pynccl.mirror.base.errors import (
    BackendError,
    BackendInvalidUsageError,
    BackendTimeoutError,
    MismatchError,
    translate,
    translated,
)
from pynccl.mirror.group.work import Work

__all__ = ["Call", "CommStream", "close_all", "run_all"]

_GRACE = 2.0  # seconds for pending CPU operations when their group is destroyed
_INVALID_USAGE, _TIMEOUT = 5, 8  # ncclInvalidUsage, ncclTimeout


class Call(NamedTuple):
    """An operation of the mirror whose arguments were checked.

    Attributes:
        kind: the name of the operation in messages, such as ``"all_reduce"``.
        tensor: its first tensor, whose device selects the communicator.
        enqueue: calls methods of a Communicator on a stream; None is the current stream. It refers
            to the tensors, which it keeps alive.
        result: the output tensors.
        arguments: its tensors by the names of the parameters, for error texts; outputs first.
        async_op: whether it runs on the communication stream and returns a Work.
        source: the source, a group rank, of a receive outside a batch.
    """

    kind: str
    tensor: torch.Tensor
    enqueue: Callable[[nccl.Communicator, int | None], object]
    result: list[torch.Tensor]
    arguments: Arguments
    async_op: bool = False
    source: int | None = None


class CommStream(_C.CommStream):
    """A communicator with its communication stream and its timeout.

    Args:
        comm: the communicator.
        device: the device of its tensors.
        timeout: the timeout of each operation.
        high_priority: whether the stream has high priority.
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
        self._communicator = comm  # keeps the Python object alive that `comm` returns
        self.device = device
        self.rank = comm.rank
        # Whether a call without a stream blocks until the operation is complete.
        self.blocks = comm.library.memory == "host"
        self._operators: dict[tuple[object, torch.dtype], nccl.RedOp] = {}
        self._finished = False
        self._aborted = False
        self.set_timeout(timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations; zero means no limit."""
        self.timeout = timeout.total_seconds()
        self.comm.timeout = self.timeout or None

    def issue(self, call: Call) -> Work | None:
        """Issue an operation.

        A synchronous operation is enqueued on the current stream. An asynchronous one is enqueued
        on the communication stream, after the work on the current stream.

        Returns:
            The Work of an asynchronous operation, else None.

        Raises:
            BackendError: NCCL or the driver failed.
            MismatchError: tensors overlap.
        """
        try:
            return super().issue(call)
        except _C.OverlapError as error:
            names = list(call.arguments)
            text = str(error).removeprefix("out: ")
            text = text.replace("overlaps tensor", f"overlaps {names[-1]}")
            raise MismatchError(f"{names[0]}: {text}") from None

    def pre_mul_sum(self, factor: Any, dtype: torch.dtype) -> nccl.RedOp:
        """Return the operator that multiplies by a factor first, cached by factor and dtype."""
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
        """Return the communicator's error for an asynchronous operation of this kind."""
        if self.comm.expired:
            return self._timeout_error(kind)
        if self.comm.revoked:
            return self._ended_early(kind, "revoked")
        if self.comm.closed:  # on CPUs, the operation itself reports the failure
            return self._ended_early(kind, "aborted") if self._aborted and not self.blocks else None
        error = self.comm.async_error()
        return None if error is None else self.explain(kind, error)

    def _ended_early(self, kind: str, how: str) -> BackendError:
        return BackendInvalidUsageError(
            f"{kind} on rank {self.rank}: the communicator was {how} before wait(); the data may "
            "be incomplete",
            _INVALID_USAGE,
            kind,
            self.rank,
        )

    def explain(self, kind: str, error: NcclError | DriverError) -> BackendError:
        """Return the exception for an operation in which NCCL or the driver failed."""
        return self._timeout_error(kind) if self.comm.expired else translate(error)

    def _timeout_error(self, kind: str) -> BackendError:
        """Return the exception for an operation after one has timed out."""
        error = self.comm._timeout_error
        text = (
            f"{kind} on rank {self.rank}: Timed out after {self.timeout:g} seconds, the timeout of "
            f"its group: {error}"
        )
        *_, missing = error.__reduce__()[1]
        return BackendTimeoutError(text, _TIMEOUT, kind, self.rank, missing)

    def finish(self, started: float) -> None:
        """Finish pending operations, so that free() can destroy the communicator.

        The limit on CPUs, for asynchronous operations that were not waited for, is 2 seconds or the
        timeout, whichever is shorter. On GPUs it is the timeout, for all operations.

        Args:
            started: the start of the shutdown, by time.monotonic().

        Raises:
            BackendError: on GPUs, operations did not finish in time, or NCCL failed. free() then
                aborts the communicator.
        """
        self._finished = False
        limit = self.timeout or math.inf
        if self.blocks:
            self._finished = self._drained(started + min(_GRACE, limit))
        elif not (self.comm.closed or self.comm.revoked):
            error = self.comm.async_error()
            if error is not None:
                raise translate(error)
            until = started + limit
            if not (self._drained(until) and _synchronized(self.device, until)):
                raise self._unfinished()
            with translated(NcclError, DriverError):
                self.comm.finalize()
            self._finished = True

    def free(self) -> None:
        """Destroy the communicator, or abort it if an operation failed or did not finish."""
        try:
            with translated(NcclError, DriverError):
                if self.comm.closed or (self._finished and self.comm.async_error() is None):
                    self._operators.clear()
                    self.comm.close()
                else:
                    self.abort()
        finally:
            self.oldest()  # releases the tensors of completed operations

    def abort(self) -> None:
        """Abort and free the communicator."""
        self._aborted |= not self.comm.closed
        self.comm.abort()

    def _drained(self, until: float) -> bool:
        """Wait for all asynchronous operations until a time; return whether they are complete."""
        while self.oldest() is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def _unfinished(self) -> BackendTimeoutError:
        return BackendTimeoutError(
            f"destroy_process_group on rank {self.rank}: operations on {self.device} are still "
            f"running after {self.timeout:g} seconds, the timeout of their group; they are aborted "
            "and their results are undefined",
            _TIMEOUT,
            "destroy_process_group",
            self.rank,
        )


def close_all(comm_streams: Iterable[CommStream]) -> None:
    """Finish pending operations and free the communicators.

    ncclCommDestroy waits for the connected ranks of its machine, and ranks may list the
    communicators in different orders. All are therefore finalized before any is destroyed.

    Raises:
        BackendError: the first error. The remaining communicators are freed nevertheless.
    """
    comm_streams = list(comm_streams)
    started = time.monotonic()
    finishes = [functools.partial(comm_stream.finish, started) for comm_stream in comm_streams]
    run_all([*finishes, *(comm_stream.free for comm_stream in comm_streams)])


def run_all(functions: Iterable[Callable[[], object]]) -> None:
    """Call all functions.

    Raises:
        Exception: the first error. The remaining functions are called nevertheless.
    """
    errors = []
    for function in functions:
        try:
            function()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _synchronized(device: torch.device, until: float) -> bool:
    """Wait for all work on a GPU until a time; return whether it is complete.

    Synchronous operations ran on streams of the caller, which may no longer exist, so this waits
    for all streams.
    """

    def synchronize() -> None:
        _C.sleep_at_exit()
        torch.cuda.synchronize(device)

    thread = threading.Thread(target=synchronize, daemon=True)
    thread.start()
    thread.join(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))
    return not thread.is_alive()


_C.set_work_class(Work)
