"""Pair: the communicators between two ranks that send to each other outside a batch.

Each direction has a communicator of its own: a rank can receive at the same time as it sends, so
that no order of isend and irecv can block. They are made at the first transfer: on GPUs that of the
transfer's direction, on CPUs both, so that two ranks can send a small tensor to each other before
either receives. An isend or irecv does not wait for that: a thread connects, and then issues the
operations that were called meanwhile, in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import NamedTuple, TypeAlias, cast

import torch

from pynccl import _C, nccl
from pynccl.mirror.group.comm_stream import CommStream
from pynccl.mirror.group.record import OperationRecord
from pynccl.mirror.group.work import DeferredWork, Work

__all__ = ["Connect", "Link", "Pair"]

# Makes CommStreams between this rank and another: of one direction or of both, by whether this rank
# sends on it. Takes the name of the operation; stops when the function returns True.
Connect: TypeAlias = Callable[[str, Callable[[], bool]], dict[bool, CommStream]]

_END = 2.0  # seconds for a connection that was cancelled to end


class _Deferred(NamedTuple):
    """An asynchronous transfer that waits for its communicator.

    Attributes:
        record: the transfer.
        made: gets its Work.
        ready: on GPUs, recorded on the caller's current stream: the tensor may be used after it.
    """

    record: OperationRecord
    made: Future[Work]
    ready: nccl.Event | None


class Link:
    """Connects two ranks, and issues their transfers until that is done.

    Args:
        pair: gets the CommStreams.
        make: makes them, waiting for the other rank until its argument returns True.
        timeout: of each transfer.
    """

    def __init__(self, pair: Pair, make: Connect, timeout: timedelta) -> None:
        self._pair = pair
        self._make = make
        self._comm_streams: dict[bool, CommStream] = {}
        self._deferred: list[_Deferred] = []
        self._connecting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._timeout = timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of the CommStreams, also of those that are being made."""
        with self._lock:
            self._timeout = timeout
            for comm_stream in self._comm_streams.values():
                comm_stream.set_timeout(timeout)

    def issue(self, record: OperationRecord) -> Work | None:
        """Issue a send or a receive, on the stream of its direction."""
        if record.async_op:
            return self._start(record)
        self._call(record)
        return None

    def _call(self, record: OperationRecord) -> None:
        while not self._comm_streams:
            thread = self._connecting
            if thread is not None:
                thread.join()
            with self._lock:
                if self._connecting is None and not self._comm_streams:
                    _check_not_capturing(record)
                    self._set(self._make(record.kind, self._closed.is_set))
        self._comm_streams[_sends(record)].issue(record)

    def _start(self, record: OperationRecord) -> Work | None:
        with self._lock:
            if self._comm_streams:
                return self._comm_streams[_sends(record)].issue(record)
            _check_not_capturing(record)
            made: Future[Work] = Future()
            self._deferred.append(_Deferred(record, made, _ready(record.tensor)))
            if self._connecting is None:
                self._connecting = threading.Thread(
                    target=self._connect, args=[record.kind], name="pynccl-connect", daemon=True
                )
                self._connecting.start()
            return DeferredWork(record.kind, made, self._timeout)

    def close(self, until: float) -> list[CommStream]:
        """Stop connecting, and return the CommStreams for the caller to close.

        Args:
            until: a connection that is being made is waited for until then, on the clock of
                time.monotonic(), so that the last transfers are issued.
        """
        thread = self._connecting
        if thread is not None:
            thread.join(max(0.0, until - time.monotonic()))
            self._closed.set()
            thread.join(_END)
        self._closed.set()
        with self._lock:
            return list(self._comm_streams.values())

    def _connect(self, kind: str) -> None:
        """Connect, and issue what was deferred. Runs in a thread."""
        try:
            comm_streams = self._make(kind, self._closed.is_set)
        except BaseException as error:
            with self._lock:
                self._connecting = None
                deferred, self._deferred = self._deferred, []
            for _, made, _ in deferred:
                made.set_exception(error)
            return
        with self._lock:
            for record, made, ready in self._deferred:
                try:
                    made.set_result(_issue_after(ready, comm_streams[_sends(record)], record))
                except BaseException as error:
                    made.set_exception(error)
            self._deferred = []
            # Not before: from here on the fast functions use the CommStreams without this lock.
            self._set(comm_streams)
            self._connecting = None

    def _set(self, comm_streams: dict[bool, CommStream]) -> None:
        self._comm_streams = comm_streams
        for sends, comm_stream in comm_streams.items():
            comm_stream.set_timeout(self._timeout)  # it may have changed meanwhile
            self._pair._connect(sends, comm_stream)


class Pair(_C.Pair):
    """The CommStreams to and from another rank.

    Args:
        connect: makes those of the directions in its first argument.
        together: whether both directions are connected at the first transfer.
        timeout: of each transfer.
    """

    def __init__(
        self,
        connect: Callable[..., dict[bool, CommStream]],
        together: bool,
        timeout: timedelta,
    ) -> None:
        super().__init__()
        if together:
            both = Link(self, lambda *rest: connect([True, False], *rest), timeout)
            self._links = {True: both, False: both}
        else:
            self._links = {
                sends: Link(self, lambda *rest, sends=sends: connect([sends], *rest), timeout)
                for sends in (True, False)
            }

    def issue(self, record: OperationRecord) -> Work | None:
        """Issue a send or a receive, on the stream of its direction."""
        return self._links[_sends(record)].issue(record)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later transfers."""
        for link in dict.fromkeys(self._links.values()):
            link.set_timeout(timeout)

    def close(self, until: float) -> list[CommStream]:
        """Remove the CommStreams and return them, for the caller to close.

        Args:
            until: as for Link.close().
        """
        links = list(dict.fromkeys(self._links.values()))
        comm_streams = [stream for link in links for stream in link.close(until)]
        self._disconnect()
        self._links = {}  # they refer to the group
        return comm_streams


def _sends(record: OperationRecord) -> bool:
    return record.calls[0].method == "send"


def _ready(tensor: torch.Tensor) -> nccl.Event | None:
    """An event of the current stream of a tensor's device; None on CPUs."""
    if not tensor.is_cuda:
        return None
    event = nccl.Event("cuda", device=tensor.device.index)
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def _issue_after(
    ready: nccl.Event | None, comm_stream: CommStream, record: OperationRecord
) -> Work:
    """Issue a deferred transfer after what its caller's stream had at the time of the call.

    This thread's current stream is another one: that it is the communication stream itself adds no
    further dependency.
    """
    if ready is None:
        return cast("Work", comm_stream.issue(record))
    device = record.tensor.device
    comm_stream.stream.wait(ready)
    with torch.cuda.stream(torch.cuda.ExternalStream(comm_stream.stream.handle, device=device)):
        return cast("Work", comm_stream.issue(record))


def _check_not_capturing(record: OperationRecord) -> None:
    if record.tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{record.kind}: the first transfer of a direction between two ranks makes a "
            "communicator, which cannot be captured into a graph; send once before the capture"
        )
