"""Two ranks that send to each other outside a batch.

Each direction has a communicator of its own: whatever one rank sends, it can receive at the same
time, so that isend and irecv in any order cannot block each other. They are made when the two first
meet. An isend or irecv on CPUs does not wait for that: a thread connects, and then starts what was
asked for meanwhile, in its order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from pynccl.mirror.channel import Channel
from pynccl.mirror.work import DeferredWork, Work

if TYPE_CHECKING:
    from pynccl.mirror.channel import Issue

__all__ = ["Pair", "Transfer"]

# Makes the channels to and from the other rank; gives up where the function says so.
Connect: TypeAlias = Callable[[Callable[[], bool]], tuple[Channel, Channel]]

_GRACE = 2.0  # seconds that the other rank still has when this one ends the group


class Transfer(NamedTuple):
    """One send or receive between the two."""

    name: str
    sends: bool
    tensor: torch.Tensor
    issue: Issue
    source: int | None = None

    def start(self, channels: tuple[Channel, Channel]) -> Work:
        """Issue it on the stream of its direction."""
        result = [] if self.sends else [self.tensor]
        channel = channels[0 if self.sends else 1]
        return channel.start(self.name, self.issue, self.tensor, result, self.source)


class Pair:
    """The channels to and from another rank.

    Args:
        connect: makes them, waiting for the other rank until it is told to give up.
        connected: is told of them.
        defers: whether asynchronous transfers may wait for that in another thread.
    """

    def __init__(
        self, connect: Connect, connected: Callable[[Channel, Channel], None], defers: bool
    ) -> None:
        self._connect = connect
        self._connected = connected
        self._defers = defers
        self._channels: tuple[Channel, Channel] | None = None
        self._deferred: list[tuple[Transfer, Future[Work]]] = []
        self._connecting: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def call(self, transfer: Transfer) -> None:
        """Issue a transfer on the current stream."""
        thread = self._connecting
        if thread is not None:
            thread.join()
        channels = self._channels or self._open(self._connect(self._closed.is_set))
        channels[0 if transfer.sends else 1].call(transfer.name, transfer.issue)

    def start(self, transfer: Transfer) -> Work:
        """Issue a transfer on the stream of its direction."""
        if self._channels is None and not self._defers:
            self._open(self._connect(self._closed.is_set))
        with self._lock:
            if self._channels is not None:
                return transfer.start(self._channels)
            made: Future[Work] = Future()
            self._deferred.append((transfer, made))
            if self._connecting is None:
                self._connecting = threading.Thread(
                    target=self._connect_for_others, name="pynccl-connect", daemon=True
                )
                self._connecting.start()
            return DeferredWork(transfer.name, made)

    def close(self) -> list[Channel]:
        """Give up the channels, for the caller to close.

        A connection that is being made is waited for, so that what was sent last arrives.
        """
        thread = self._connecting
        if thread is not None:
            thread.join(_GRACE)
            self._closed.set()
            thread.join(_GRACE)
        self._closed.set()
        with self._lock:
            channels, self._channels = self._channels, None
            return list(channels or ())

    def _connect_for_others(self) -> None:
        try:
            channels = self._connect(self._closed.is_set)
        except BaseException as error:
            with self._lock:
                self._connecting = None
                deferred, self._deferred = self._deferred, []
            for _, made in deferred:
                made.set_exception(error)
            return
        with self._lock:
            for transfer, made in self._deferred:
                try:
                    made.set_result(transfer.start(channels))
                except BaseException as error:
                    made.set_exception(error)
            self._deferred = []
            self._open(channels)
            self._connecting = None

    def _open(self, channels: tuple[Channel, Channel]) -> tuple[Channel, Channel]:
        self._channels = channels
        if not self._closed.is_set():
            self._connected(*channels)
        return channels
