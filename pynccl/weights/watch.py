"""Ends the waits of a transfer when a control connection shows that it cannot complete."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from pynccl.weights.messages import Bye, Fail, Failed, Stop
from pynccl.weights.wire import Link

__all__ = ["is_ending", "watch"]

_PERIOD = 0.05  # seconds between two checks


@contextlib.contextmanager
def watch(links: Sequence[Link], interrupt: Callable[[], object]) -> Iterator[None]:
    """Call a function once if a connection closes or brings the end of the transfer.

    A thread monitors the connections while the calling thread waits in NCCL. A library that shares
    memory between its ranks detects a death by itself, NCCL may not.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(_PERIOD):
            if any(map(is_ending, links)):
                interrupt()
                return

    thread = threading.Thread(target=run, name="pynccl-weights-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def is_ending(link: Link) -> bool:
    """Whether a connection is closed or has brought the end of the transfer."""
    messages = link.unread()
    return bool(link.lost) or any(isinstance(one, Stop | Fail | Failed | Bye) for one in messages)
