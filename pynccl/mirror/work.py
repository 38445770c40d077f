"""Work: the handle of an asynchronous operation."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from pynccl.errors import DriverError, NcclError
from pynccl.mirror.errors import BackendError, BackendTimeoutError, translate

if TYPE_CHECKING:
    from pynccl import _C
    from pynccl.mirror.channel import Channel

__all__ = ["DeferredWork", "IllegalWork", "Work"]

_NO_TIMEOUT = timedelta(0)


class Work:
    """An operation that was issued with ``async_op=True``.

    It holds the operation's tensors until somebody has waited for it.
    """

    def __init__(
        self,
        inner: _C.Work,
        channel: Channel,
        name: str,
        result: list[torch.Tensor],
        source: int | None = None,
    ) -> None:
        self._inner = inner
        self._channel = channel
        self._name = name
        self._result = result
        self._source = source
        self._error: BackendError | None = None
        self._waited = False

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Make the current stream wait for the operation; on CPUs, and with a timeout, the caller.

        Args:
            timeout: how long to wait at most; zero is as long as the group's own timeout lets it.

        Returns:
            True.

        Raises:
            DistBackendError: the operation failed, or took longer.
        """
        if self._waited and self._error is None and self._channel.blocks:
            return True
        try:
            if timeout > _NO_TIMEOUT:
                if not self._inner.wait_for(timeout.total_seconds()):
                    raise BackendTimeoutError(
                        f"Operation Timed out waiting {_milliseconds(timeout)}ms for {self._name} "
                        f"on rank {self._channel.rank}",
                        8,
                        self._name,
                        self._channel.rank,
                    )
            else:
                self._inner.wait()
        except (NcclError, DriverError) as error:
            raise translate(error) from None
        self._note_error()
        self._waited = True
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait as :meth:`wait` does without a timeout."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream wait for the operation; on CPUs that is the caller."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or with an error."""
        if not self._inner.query():
            return False
        self._note_error()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BackendError | None:
        """What the operation has failed with, so far."""
        self.is_completed()
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation writes."""
        return self._result

    def source_rank(self) -> int:
        """The rank, in the group, that an irecv from any source received from."""
        if self._source is None:
            raise RuntimeError("source_rank() may only be called on work of a recv")
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future whose value is :meth:`result`."""
        if not self._channel.blocks:
            return self._future_on_device()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def complete() -> None:
            self._note_error()
            if self._error is not None:
                future.set_exception(self._error)  # type: ignore[arg-type]
            else:
                future.set_result(self._result)

        self._channel.after_queue(complete)
        return future

    def _future_on_device(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Complete at once: whoever waits for it makes their stream wait for ours."""
        device = self._channel.device
        future: Any = torch.futures.Future(devices=[device])
        with torch.cuda.stream(torch.cuda.ExternalStream(self._channel.queue_handle, device)):
            future.set_result(self._result)
        return future

    def _note_error(self) -> None:
        if self._error is None and not self._waited:
            self._error = self._channel.error(self._name)

    def __repr__(self) -> str:
        return f"<pynccl.Work {self._name} on rank {self._channel.rank}>"


class IllegalWork(Work):
    """What a coalesced operation returns: only the coalescing manager can wait for it."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_THE_MANAGER:
            raise ValueError(f"Illegal to call {name} on IllegalWork object")
        return super().__getattribute__(name)


_OF_THE_MANAGER = frozenset(
    ("is_success", "exception", "wait", "source_rank", "_source_rank", "result", "synchronize")
)


class DeferredWork(Work):
    """An operation whose communicator is still being made, by another thread."""

    def __init__(self, name: str, made: Future[Work]) -> None:
        self._name = name
        self._made = made

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        limit = timeout.total_seconds() if timeout > _NO_TIMEOUT else None
        try:
            work = self._made.result(limit)
        except FutureTimeoutError:
            raise BackendTimeoutError(
                f"Operation Timed out waiting {_milliseconds(timeout)}ms for {self._name}: the "
                "other rank has not come yet",
                8,
                self._name,
            ) from None
        return work.wait(timeout)

    def is_completed(self) -> bool:
        if not self._made.done():
            return False
        return self._made.exception() is not None or self._made.result().is_completed()

    def exception(self) -> BaseException | None:  # type: ignore[override]
        if not self._made.done():
            return None
        return self._made.exception() or self._made.result().exception()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        return self._made.result().result()

    def source_rank(self) -> int:
        return self._made.result().source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._made.result().get_future()

    def __repr__(self) -> str:
        return f"<pynccl.Work {self._name}, connecting>"


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
