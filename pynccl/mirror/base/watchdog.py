"""Aborts operations on CPUs that take longer than their group's timeout.

An operation that blocks its caller cannot check the timeout itself. One thread checks at intervals
whether each CommStream has made progress. The interval is a fraction of the shortest timeout: with
the default of half an hour the thread wakes every few minutes.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

__all__ = ["Watched", "watch"]

_CHECKS = 8  # per timeout


class Watched(Protocol):
    """What the watchdog needs of a CommStream."""

    timeout: float  # seconds

    def __hash__(self) -> int: ...

    @property
    def closed(self) -> bool:
        """Whether there is nothing more to watch."""

    def progress(self) -> object | None:
        """What is under way, as a value that changes when it ends; None if nothing is."""

    def expire(self) -> None:
        """Abort what is under way."""


class _Watchdog:
    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """Remove all entries: a child of fork() has neither the thread nor usable CommStreams."""
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._seen: weakref.WeakKeyDictionary[Watched, tuple[object, float]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._running = False

    def watch(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="pynccl-watchdog", daemon=True).start()
        self._changed.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                open_ones = [watched for watched in self._watched if not watched.closed]
                if not open_ones:
                    self._running = False
                    return
            period = min(watched.timeout for watched in open_ones) / _CHECKS
            for watched in open_ones:
                self._check(watched)
            del open_ones, watched
            self._changed.wait(max(period, 0.01))
            self._changed.clear()

    def _check(self, watched: Watched) -> None:
        progress, now = watched.progress(), time.monotonic()
        if progress is None:
            self._seen.pop(watched, None)
            return
        before, since = self._seen.get(watched, (None, now))
        if progress != before:
            self._seen[watched] = (progress, now)
        elif now - since > watched.timeout:
            watched.expire()


_watchdog = _Watchdog()


def watch(watched: Watched) -> None:
    """Expire a CommStream when an operation of it takes longer than its timeout."""
    _watchdog.watch(watched)


os.register_at_fork(after_in_child=_watchdog.start_again)
