"""Pair: the communicators of two ranks that send to each other outside a batch.

Each direction has its own communicator, so a rank can send and receive concurrently and no order of
isend and irecv deadlocks. Both are created on the first transfer. isend and irecv do not wait for
the connection: a thread connects, and then issues the operations called in the meantime, in order.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import NamedTuple, TypeAlias, cast

import torch

from pynccl import nccl
from pynccl.mirror.group.comm_stream import Call, CommStream
from pynccl.mirror.group.work import DeferredWork, Work
from pynccl.store import ask

__all__ = ["Connect", "Pair"]

# Creates the CommStreams to and from another rank, keyed by whether this rank sends.
Connect: TypeAlias = Callable[[], dict[bool, CommStream]]

_END = 2.0  # seconds for a cancelled connection to end


class _Deferred(NamedTuple):
    """An asynchronous transfer that waits for its communicator.

    Attributes:
        call: the transfer.
        sends: whether this rank sends.
        work: receives its Work.
        ready: on GPUs, an event of the caller's current stream after which the tensor is ready.
    """

    call: Call
    sends: bool
    work: Future[Work]
    ready: nccl.Event | None


class Pair:
    """The CommStreams to and from another rank.

    Args:
        connect: creates the CommStreams.
        connected: called with the CommStreams to send and to receive when both are usable.
        timeout: the timeout of each transfer.
    """

    def __init__(
        self,
        connect: Connect,
        connected: Callable[[CommStream, CommStream], None],
        timeout: timedelta,
    ) -> None:
        self._connect: Connect | None = connect  # holds a reference to the group
        self._connected = connected
        self._timeout = timeout
        self._comm_streams: dict[bool, CommStream] = {}
        self._connecting: Future[None] | None = None
        self._deferred: list[_Deferred] = []
        self._lock = threading.Lock()

    def issue(self, call: Call, sends: bool) -> Work | None:
        """Issue a send or a receive, on the stream of its direction."""
        with self._lock:
            connecting = None
            if not self._comm_streams:
                _check_not_capturing(call)
                connecting = self._connecting = self._connecting or ask(self._connect_both)
            if call.async_op and connecting is not None:
                work: Future[Work] = Future()
                self._deferred.append(_Deferred(call, sends, work, _ready(call.tensor)))
                return DeferredWork(call, work, self._timeout)
        if connecting is not None:
            connecting.result()
        return self._comm_streams[sends].issue(call)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later transfers."""
        with self._lock:
            self._timeout = timeout
            for comm_stream in self._comm_streams.values():
                comm_stream.set_timeout(timeout)

    def finish_connecting(self, until: float) -> None:
        """Wait for a connection in progress until a time, by time.monotonic()."""
        connecting = self._connecting
        if connecting is not None:
            wait([connecting], max(0.0, until - time.monotonic()))

    def close(self) -> list[CommStream]:
        """Remove the CommStreams and return them, for the caller to close.

        A connection in progress must have been cancelled.
        """
        self.finish_connecting(time.monotonic() + _END)
        self._connect = None
        with self._lock:
            return list(self._comm_streams.values())

    def _connect_both(self, _connecting: Future[None]) -> None:
        """Connect, and issue the deferred transfers. Runs in a thread."""
        connect = self._connect
        try:
            if connect is None:
                raise RuntimeError("the group has ended")
            comm_streams = connect()
        except BaseException as error:
            with self._lock:
                self._connecting = None
                deferred, self._deferred = self._deferred, []
            for transfer in deferred:
                transfer.work.set_exception(error)
            raise
        outcomes: list[Callable[[], None]] = []
        try:
            with self._lock:
                for comm_stream in comm_streams.values():
                    comm_stream.set_timeout(self._timeout)  # it may have changed in the meantime
                outcomes += [_outcome(transfer, comm_streams) for transfer in self._deferred]
                self._deferred = []
                # Last, because from here on the fast path uses the CommStreams without this lock.
                self._comm_streams = comm_streams
                self._connected(comm_streams[True], comm_streams[False])
        finally:
            for outcome in outcomes:  # without the lock, because callbacks of futures may send
                outcome()


def _outcome(transfer: _Deferred, comm_streams: dict[bool, CommStream]) -> Callable[[], None]:
    """Issue a deferred transfer, and return a function that reports it to its DeferredWork."""
    try:
        return functools.partial(transfer.work.set_result, _issue_deferred(transfer, comm_streams))
    except BaseException as error:
        return functools.partial(transfer.work.set_exception, error)


def _ready(tensor: torch.Tensor) -> nccl.Event | None:
    """Record an event on the current stream of a tensor's device; None on CPUs."""
    if not tensor.is_cuda:
        return None
    event = nccl.Event("cuda", device=tensor.device.index)
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def _issue_deferred(transfer: _Deferred, comm_streams: dict[bool, CommStream]) -> Work:
    """Issue a transfer after the work on the caller's stream at the time of the call.

    The communication stream itself serves as this thread's current stream, which adds no further
    dependency.
    """
    call, comm_stream = transfer.call, comm_streams[transfer.sends]
    if transfer.ready is None:
        return cast("Work", comm_stream.issue(call))
    comm_stream.stream.wait(transfer.ready)
    handle, device = comm_stream.stream.handle, call.tensor.device
    with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
        return cast("Work", comm_stream.issue(call))


def _check_not_capturing(call: Call) -> None:
    if call.tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{call.kind}: the first transfer between two ranks creates communicators, which "
            "cannot be captured into a graph; send once before the capture"
        )
