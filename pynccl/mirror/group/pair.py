"""Two ranks that send to each other outside a batch.

Each direction has a communicator of its own: a rank can receive at the same time as it sends, so
that no order of isend and irecv can block. The communicators are made at the first transfer between
the two. An isend or irecv on CPUs does not wait for that: a thread connects, and then issues the
operations that were called meanwhile, in their order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, cast

from pynccl import _C
from pynccl.mirror.group.comm_stream import CommStream
from pynccl.mirror.group.record import OperationRecord
from pynccl.mirror.group.work import DeferredWork, Work

__all__ = ["Pair"]

# Makes the CommStreams to and from the other rank; stops when the function returns True.
Connect: TypeAlias = Callable[[Callable[[], bool]], tuple[CommStream, CommStream]]

_GRACE = 2.0  # seconds for the other rank to connect when this one destroys the group


class Pair(_C.Pair):
    """The CommStreams to and from another rank.

    Args:
        connect: makes them, waiting for the other rank until its argument returns True.
        defers: whether asynchronous transfers may wait for that in another thread.
    """

    _comm_streams: tuple[CommStream, CommStream] | None

    def __init__(self, connect: Connect, defers: bool) -> None:
        super().__init__()
        self._make = connect
        self._defers = defers
        self._deferred: list[tuple[OperationRecord, Future[Work]]] = []
        self._connecting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def issue(self, record: OperationRecord) -> Work | None:
        """Issue a send or a receive, on the stream of its direction."""
        if record.async_op:
            return self._start(record)
        self._call(record)
        return None

    def _call(self, record: OperationRecord) -> None:
        thread = self._connecting
        if thread is not None:
            thread.join()
        comm_streams = self._comm_streams
        if comm_streams is None:
            comm_streams = self._make(self._closed.is_set)
            self._connect(*comm_streams)
        _direction(record, comm_streams).issue(record)

    def _start(self, record: OperationRecord) -> Work | None:
        if self._comm_streams is None and not self._defers:
            self._connect(*self._make(self._closed.is_set))
        with self._lock:
            comm_streams = self._comm_streams
            if comm_streams is not None:
                return _direction(record, comm_streams).issue(record)
            made: Future[Work] = Future()
            self._deferred.append((record, made))
            if self._connecting is None:
                self._connecting = threading.Thread(
                    target=self._connect_for_deferred, name="pynccl-connect", daemon=True
                )
                self._connecting.start()
            return DeferredWork(record.kind, made)

    def close(self) -> list[CommStream]:
        """Remove the CommStreams and return them, for the caller to close.

        A connection that is being made is waited for, so that the last sends arrive.
        """
        thread = self._connecting
        if thread is not None:
            thread.join(_GRACE)
            self._closed.set()
            thread.join(_GRACE)
        self._closed.set()
        with self._lock:
            comm_streams = self._comm_streams
            self._disconnect()
            return list(comm_streams or ())

    def _connect_for_deferred(self) -> None:
        try:
            comm_streams = self._make(self._closed.is_set)
        except BaseException as error:
            with self._lock:
                self._connecting = None
                deferred, self._deferred = self._deferred, []
            for _, made in deferred:
                made.set_exception(error)
            return
        with self._lock:
            for record, made in self._deferred:
                try:
                    made.set_result(cast("Work", _direction(record, comm_streams).issue(record)))
                except BaseException as error:
                    made.set_exception(error)
            self._deferred = []
            # Not before: from here on the fast functions use the CommStreams without this lock.
            self._connect(*comm_streams)
            self._connecting = None


def _direction(record: OperationRecord, comm_streams: tuple[CommStream, CommStream]) -> CommStream:
    """The CommStream of a transfer."""
    to, from_ = comm_streams
    return to if record.calls[0].method == "send" else from_
