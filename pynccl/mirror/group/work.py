"""Work: the handle of an asynchronous operation."""

from __future__ import annotations

import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import Any, Protocol, cast

import torch

from pynccl import _C
from pynccl.mirror.base.errors import BackendError, BackendTimeoutError

__all__ = ["DeferredWork", "Work"]

_NO_TIMEOUT = timedelta(0)
_SLICE = 0.1  # seconds between checks for signals
_PAUSE = 0.0001  # seconds between polls of an event


class _CommStream(Protocol):
    """The part of CommStream that a Work uses."""

    rank: int
    device: torch.device
    blocks: bool
    timeout: float

    @property
    def stream(self) -> _C.Stream: ...

    def error(self, kind: str) -> BackendError | None: ...


class _Call(Protocol):
    """The part of Call that a DeferredWork uses."""

    @property
    def kind(self) -> str: ...
    @property
    def tensor(self) -> torch.Tensor: ...
    @property
    def result(self) -> list[torch.Tensor]: ...
    @property
    def source(self) -> int | None: ...


class Work(_C.Work):
    """See torch.distributed.Work. The handle of an asynchronous operation.

    It keeps the operation's tensors alive until :meth:`wait` has returned. Without a wait, they
    stay alive until the operation is complete. The next call on the communicator, or closing it,
    then releases them.
    """

    __slots__ = ("__weakref__",)

    _comm_stream: _CommStream

    def _wait_at_most(self, timeout: timedelta | float | None) -> bool:
        """Implement wait() with a timeout."""
        timeout = _limit(timeout)
        if timeout <= _NO_TIMEOUT:
            return self.wait()
        until = time.monotonic() + timeout.total_seconds()
        while not self._ends_within(min(_SLICE, max(0.0, until - time.monotonic()))):
            if time.monotonic() < until:
                continue
            raise BackendTimeoutError(
                f"rank {self._comm_stream.rank}: Timed out waiting {_milliseconds(timeout)}ms for "
                f"{self._name}",
                8,
                self._name,
                self._comm_stream.rank,
            )
        return True

    def _ends_within(self, seconds: float) -> bool:
        """Wait for at most some seconds; return whether the operation is complete.

        On GPUs, an earlier failure of the current stream is not a failure of this operation.
        """
        if self._comm_stream.blocks:
            return self._wait_for(seconds)
        until = time.monotonic() + seconds
        while not self.is_completed():
            if time.monotonic() >= until:
                return False
            time.sleep(_PAUSE)
        return self.wait()

    def synchronize(self) -> None:
        """See torch.distributed.Work.synchronize. Same as :meth:`wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream (on CPUs, the caller) wait for the operation."""
        self.wait()

    @property
    def timeout(self) -> timedelta:
        """The timeout of the operation's group. Available since torch 2.14."""
        return timedelta(seconds=self._comm_stream.timeout)

    def exception(self) -> BaseException | None:  # type: ignore[override]
        """See torch.distributed.Work.exception. A DistBackendError, or None."""
        error = super().exception()
        if error is None and self._comm_stream.blocks and self.is_completed():
            try:
                self._wait_for(0.0)  # raises errors that the communicator no longer reports
            except BackendError as failure:
                return failure
        return error

    def is_success(self) -> bool:
        """See torch.distributed.Work.is_success."""
        return self.is_completed() and self.exception() is None

    def source_rank(self) -> int:
        """Return the source of an irecv, a group rank; RuntimeError for other operations."""
        if self._source is None:
            raise RuntimeError("source_rank() may only be called on work of a recv")
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """See torch.distributed.Work.get_future.

        On GPUs it is complete immediately, and a stream that waits for it waits for the operation.
        """
        if not self._comm_stream.blocks:
            return self._future_on_device()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def complete() -> None:
            error = self.exception()
            if error is not None:
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(self.result())

        if self.is_completed():
            complete()  # on the stream, it would follow later operations
        else:
            self._comm_stream.stream.launch(complete)
        return future

    def _future_on_device(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a completed future; a stream that waits for it waits for the operation."""
        device = self._comm_stream.device
        future: Any = torch.futures.Future(devices=[device])
        error = self.exception() if self.is_completed() else self._comm_stream.error(self._name)
        if error is not None:
            future.set_exception(error)
            return future
        with torch.cuda.stream(torch.cuda.ExternalStream(self._comm_stream.stream.handle, device)):
            future.set_result(self.result())
        return future

    def __repr__(self) -> str:
        return f"<pynccl.Work {self._name} on rank {self._comm_stream.rank}>"


class DeferredWork(Work):
    """The Work of an operation whose communicator is still being created by another thread.

    Args:
        call: the operation.
        started: receives its Work when the communicator exists.
        timeout: the timeout of the operation.
    """

    def __init__(self, call: _Call, started: Future[Work], timeout: timedelta) -> None:
        self._call = call
        self._started = started
        self._timeout = timeout

    @property
    def _source(self) -> int | None:
        return self._call.source

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        timeout = _limit(timeout)
        if timeout <= _NO_TIMEOUT:
            return self._started.result().wait()
        until = time.monotonic() + timeout.total_seconds()
        try:
            started = self._started.result(timeout.total_seconds())
        except FutureTimeoutError:
            raise BackendTimeoutError(
                f"{self._call.kind}: Timed out waiting {_milliseconds(timeout)}ms, the other rank "
                "has not connected yet",
                8,
                self._call.kind,
            ) from None
        left = timedelta(seconds=until - time.monotonic())
        return started.wait(max(left, timedelta(microseconds=1)))

    def is_completed(self) -> bool:
        if not self._started.done():
            return False
        return self._started.exception() is not None or self._started.result().is_completed()

    def exception(self) -> BaseException | None:  # type: ignore[override]
        if not self._started.done():
            return None
        return self._started.exception() or self._started.result().exception()

    def result(self) -> list[torch.Tensor]:
        return self._call.result

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """See Work.get_future. Even on GPUs, it is not complete before the ranks are connected."""
        device = self._call.tensor.device
        future: Any = torch.futures.Future(devices=[] if device.type == "cpu" else [device])

        def complete(done: torch.futures.Future[list[torch.Tensor]]) -> None:
            try:
                future.set_result(done.value())
            except Exception as error:
                future.set_exception(error)

        def follow(started: Future[Work]) -> None:
            error = started.exception()
            if error is not None:
                future.set_exception(error)
            else:
                started.result().get_future().add_done_callback(complete)

        self._started.add_done_callback(follow)
        return cast("torch.futures.Future[list[torch.Tensor]]", future)

    def __repr__(self) -> str:
        return f"<pynccl.Work {self._call.kind}, connecting>"


def _limit(timeout: timedelta | float | None) -> timedelta:
    """Return the argument of wait(), which is in seconds if it is a number, as in torch."""
    if timeout is None:
        return _NO_TIMEOUT
    if isinstance(timeout, (int, float)):
        return timedelta(seconds=timeout)
    if not isinstance(timeout, timedelta):
        raise TypeError(
            "timeout: expected a datetime.timedelta or seconds as a float, got "
            f"{type(timeout).__name__}"
        )
    return timeout


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
