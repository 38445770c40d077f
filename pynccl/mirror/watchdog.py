"""Ends operations on CPUs that take longer than their group's timeout.

An operation that blocks its caller cannot look at the clock itself. One thread looks now and then
whether each channel is still where it was; it sleeps for a good part of the shortest timeout, so
that with the default of half an hour it hardly ever wakes.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pynccl.mirror.channel import Channel

__all__ = ["watch"]

_LOOKS = 8  # in the length of a timeout


class _Watchdog:
    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """Forget everything: a child of fork() has neither the thread nor usable channels."""
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._seen: weakref.WeakKeyDictionary[Channel, tuple[object, float]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._running = False

    def watch(self, channel: Channel) -> None:
        with self._lock:
            self._channels.add(channel)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="pynccl-watchdog", daemon=True).start()
        self._changed.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                channels = [channel for channel in self._channels if not channel.comm.closed]
                if not channels:
                    self._running = False
                    return
            period = min(channel.timeout for channel in channels) / _LOOKS
            for channel in channels:
                self._look(channel)
            del channels, channel
            self._changed.wait(max(period, 0.01))
            self._changed.clear()

    def _look(self, channel: Channel) -> None:
        progress, now = channel.progress(), time.monotonic()
        if progress is None:
            self._seen.pop(channel, None)
            return
        before, since = self._seen.get(channel, (None, now))
        if progress != before:
            self._seen[channel] = (progress, now)
        elif now - since > channel.timeout:
            channel.expire()


_watchdog = _Watchdog()


def watch(channel: Channel) -> None:
    """Expire the channel when an operation of it takes longer than its timeout."""
    _watchdog.watch(channel)


os.register_at_fork(after_in_child=_watchdog.start_again)
