"""A communicator with the stream of its asynchronous operations.

A process group has one for each kind of device; two ranks that send to each other have one for
each direction.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

import torch

from pynccl import _C, nccl
from pynccl.errors import DriverError, NcclError
from pynccl.mirror import watchdog
from pynccl.mirror.errors import BackendError, BackendTimeoutError, translate
from pynccl.mirror.work import Work

__all__ = ["Channel", "Issue"]

# Calls NCCL: takes the communicator and the stream as collectives take it.
Issue: TypeAlias = Callable[[nccl.Communicator, int | None], None]

_GRACE = 2.0  # seconds that operations nobody waited for have left when their group ends


class Channel:
    """One communicator, its queue and its timeout."""

    def __init__(
        self,
        comm: nccl.Communicator,
        device: torch.device,
        timeout: timedelta,
        *,
        high_priority: bool = False,
    ) -> None:
        self.comm = comm
        self.device = device
        self.rank = comm.rank
        # Where a call without a stream lasts until the operation is done.
        self.blocks = comm.library.memory == "host"
        self.timeout = timeout.total_seconds()
        self._high_priority = high_priority
        self._operators: dict[tuple[object, torch.dtype], nccl.RedOp] = {}
        self._calls = 0  # odd while one is under way
        self._expired = ""
        self._lock = threading.Lock()
        if self.blocks:
            watchdog.watch(self)

    def call(self, name: str, issue: Issue) -> None:
        """Issue on the current stream."""
        self._calls += 1
        try:
            issue(self.comm, None)
        except NcclError as error:
            raise self._explain(name, error) from None
        finally:
            self._calls += 1

    def start(
        self,
        name: str,
        issue: Issue,
        tensor: torch.Tensor,
        result: list[torch.Tensor],
        source: int | None = None,
    ) -> Work:
        """Issue on the communication stream, after what is on the current one.

        Args:
            name: the operation's, for messages.
            issue: calls NCCL; kept until the work was waited for, with all that it refers to.
            tensor: the first of the operation's, whose framework knows the current stream.
            result: the tensors that it writes.
            source: the rank that it receives from, for :meth:`Work.source_rank`.
        """
        queue = self._queue
        with self._lock:
            queue.begin(tensor)
            try:
                issue(self.comm, self.queue_handle)
            except (NcclError, DriverError) as error:
                raise self._explain(name, error) from None
            inner = queue.end((issue, result))
        return Work(inner, self, name, result, source)

    @functools.cached_property
    def _stream(self) -> _C.Stream:
        priority = -1 if self._high_priority else 0
        return _C.Stream(self.comm.library, self.comm.device, priority)

    @functools.cached_property
    def _queue(self) -> _C.WorkQueue:
        return _C.WorkQueue(self.comm.library, self._stream)

    @functools.cached_property
    def queue_handle(self) -> int:
        """The communication stream."""
        return self._stream.handle

    def after_queue(self, function: Callable[[], None]) -> None:
        """Call a function when all that is in the queue now is done, from another thread."""
        self._stream.launch(function)

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
            return self._timed_out(name)
        if self.comm.closed:
            return None
        error = self.comm.async_error()
        return None if error is None else self._explain(name, error)

    def _explain(self, name: str, error: NcclError | DriverError) -> BackendError:
        return self._timed_out(name) if self._expired else translate(error)

    def _timed_out(self, name: str) -> BackendError:
        text = f"{name} on rank {self.rank}: {self._expired}"
        return BackendTimeoutError(text, 8, name, self.rank)

    def progress(self) -> tuple[int, int | None] | None:
        """What is under way, as a value that changes when it ends; None if nothing is."""
        calls = self._calls
        queue = self.__dict__.get("_queue")
        oldest = queue.oldest() if queue is not None else None
        if calls % 2 == 0 and oldest is None:
            return None
        return (calls if calls % 2 else 0), oldest

    def expire(self) -> None:
        """Give up what is under way: it took longer than the timeout."""
        self._expired = (
            f"the operation Timed out after {self.timeout:g} seconds, the timeout of its group; "
            "not every rank has taken part"
        )
        self.call = self.start = self._refuse  # type: ignore[assignment, method-assign]
        self.comm.abort()

    def _refuse(self, name: str, *_: object) -> NoReturn:
        raise self._timed_out(name)

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
        queue = self.__dict__.get("_queue")
        until = time.monotonic() + min(_GRACE, self.timeout)
        while queue is not None and queue.oldest() is not None:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True
