"""Ends the waits of a transfer when a control connection shows that it cannot complete."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from pynccl.weights.messages import Bye, Fail, Failed, Stop
from pynccl.weights.wire import Link

__all__ = ["Watcher", "is_ending"]

_PERIOD = 0.05  # seconds between two checks


class Watcher:
    """A thread that monitors connections while the calling thread waits in NCCL.

    hostnccl detects a death by itself, NCCL may not. One thread serves all transfers, because
    starting one takes longer than sending a small model.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = threading.Event()
        self._links: Sequence[Link] = ()
        self._interrupt: Callable[[], object] | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watch(self, links: Sequence[Link], interrupt: Callable[[], object]) -> Iterator[None]:
        """Call a function once if a connection closes or receives the end of the transfer."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pynccl-weights", daemon=True)
            self._thread.start()
        with self._lock:
            self._links, self._interrupt = links, interrupt
        self._active.set()
        try:
            yield
        finally:
            self._active.clear()
            with self._lock:
                self._links, self._interrupt = (), None  # releases communicators

    def close(self) -> None:
        self._is_closed = True
        self._active.set()

    def _run(self) -> None:
        pause = threading.Event()
        while not self._is_closed:
            self._active.wait()
            pause.wait(_PERIOD)
            with self._lock:
                if self._interrupt is not None and any(map(is_ending, self._links)):
                    self._interrupt()
                    self._interrupt = None


def is_ending(link: Link) -> bool:
    """Whether a connection is closed or has received the end of the transfer."""
    messages = link.unread()
    return bool(link.lost) or any(isinstance(one, Stop | Fail | Failed | Bye) for one in messages)
