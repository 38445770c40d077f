"""Tools for tests of blocking calls: windows, calls in threads, detection of blocked threads,
synchronization of ranks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pynccl import nccl
from tests.support.rank import Rank

T = TypeVar("T")

PAGE = 4096
DEADLINE = 20.0  # seconds until a blocked call must end


class Area:
    """A window: the first half is the source of puts, the second half their target."""

    def __init__(self, comm: nccl.Communicator) -> None:
        self.buffer = comm.mem_alloc(2 * PAGE)
        self.window = comm.register_window(self.buffer)
        halves = np.from_dlpack(self.buffer).view(np.int32).reshape(2, -1)
        self.outgoing, self.incoming = halves[0], halves[1]
        self.half = PAGE

    def put(self, comm: nccl.Communicator, peer: int) -> None:
        comm.put_signal(self.outgoing, peer, self.window, self.half)


class Blocked:
    """A call in its own thread that must end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait until the thread is blocked."""
        wait_until_blocked(self._thread)

    def end(self, reason: str | None = "") -> None:
        """Check that the call has raised an error with this text, or has returned if it is None."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        if reason is None:
            assert self._error is None, repr(self._error)
            return
        assert isinstance(self._error, nccl.NcclError), repr(self._error)
        assert reason in str(self._error), str(self._error)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions on threads that start together, and return their results or exceptions."""
    results: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(number: int) -> None:
        try:
            start.wait(10)
            results[number] = calls[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=[i], daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread did not return"
    return results


def in_threads(*calls: Callable[[], T]) -> list[T]:
    """Call functions as together() does, and raise the first exception."""
    results = together(*calls)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def wait_until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait until a condition is true. Fails after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def wait_until_blocked(thread: threading.Thread) -> None:
    """Wait until ten samples find a thread asleep in the same call, or until it has ended.

    A thread that NCCL lets poll is rarely asleep: 40 samples in the same call suffice.
    """
    is_main = thread is threading.main_thread()  # its native_id may date from before a fork
    status = Path(f"/proc/self/task/{os.getpid() if is_main else thread.native_id}/stat")
    looks, before = 0.0, None
    while looks < 10:
        time.sleep(0.005)
        if not thread.is_alive():
            return
        assert thread.ident is not None
        frame = sys._current_frames().get(thread.ident)
        at = frame and (frame.f_code, frame.f_lasti)
        try:
            sleeps = status.read_text().rpartition(")")[2].split()[0] == "S"
        except (FileNotFoundError, ProcessLookupError):  # it is ending
            continue
        looks = looks + (1 if sleeps else 0.25) if at == before else 0
        before = at


def when_blocked(call: Callable[[], object]) -> threading.Thread:
    """Call a function on another thread, which is returned, once the main thread is blocked."""

    def run() -> None:
        wait_until_blocked(threading.main_thread())
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def interrupt_when_blocked(number: signal.Signals = signal.SIGINT) -> list[float]:
    """Send a signal to this process as soon as the main thread is blocked, and list when."""
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    when_blocked(interrupt)
    return sent


def synchronize(rank: Rank) -> None:
    """Wait for all ranks, on a communicator that no case uses."""
    rank.comm.all_reduce(np.ones(1, np.float32))
