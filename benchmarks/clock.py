"""How long calls take: by the wall on CPUs, by events on the stream on GPUs."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import torch

from benchmarks.peers import Call

__all__ = ["Clock", "CudaClock", "Elapsed", "HostClock"]


class Elapsed(NamedTuple):
    """Seconds of one call on average; host is the time until it returns, where that is not all."""

    seconds: float
    host: float | None


class Clock(Protocol):
    """Measures calls.

    Attributes:
        limit: calls that may be measured at once.
    """

    limit: int

    def measure(self, call: Call, iterations: int) -> Elapsed:
        """Make the call so many times and wait for the last one."""


class HostClock:
    """For calls that return when they are done."""

    limit = 100_000

    def measure(self, call: Call, iterations: int) -> Elapsed:
        start = time.perf_counter()
        for _ in range(iterations):
            call()
        stop = time.perf_counter()
        return Elapsed((stop - start) / iterations, None)


class CudaClock:
    """For calls that enqueue work on, or before, the current stream."""

    # A full launch queue would block the host and be counted as its time.
    limit = 200

    def __init__(self) -> None:
        self._first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def measure(self, call: Call, iterations: int) -> Elapsed:
        self._first.record()
        start = time.perf_counter()
        for _ in range(iterations):
            call()
        stop = time.perf_counter()
        self._last.record()
        self._last.synchronize()
        milliseconds = self._first.elapsed_time(self._last)
        return Elapsed(milliseconds / 1e3 / iterations, (stop - start) / iterations)
