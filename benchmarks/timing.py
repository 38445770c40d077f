"""Times libraries in turns, in samples of many calls, and computes medians and spreads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

__all__ = [
    "CudaClock",
    "Elapsed",
    "Figure",
    "HostClock",
    "Timer",
    "figures",
    "in_turns",
    "samples",
]

_LONG = 0.1  # seconds; slower calls get few samples
_FEW = 3
_LEAST = 1e-9  # seconds: events on a GPU can have the same time

# The times of one library or way, by column, as benchmarks.report prints and writes them.
Figure: TypeAlias = dict[str, Any]


class Elapsed(NamedTuple):
    """Mean seconds of one call; host is the time until an asynchronous call returns."""

    seconds: float
    host: float | None = None


# Takes a sample of a number of calls: their mean, and the maximum over the ranks.
Timer: TypeAlias = Callable[[int], Elapsed]


class HostClock:
    """Measures calls that are complete when they return.

    Attributes:
        limit: the maximum number of calls of a sample.
    """

    limit = 100_000

    def measure(self, call: Callable[[], object], calls: int) -> Elapsed:
        """Repeat the call, and wait for the last one."""
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return Elapsed((time.perf_counter() - start) / calls)


class CudaClock(HostClock):
    """Measures calls that enqueue work on the current stream or before it."""

    # A full launch queue would block the host, which would count as host time.
    limit = 200

    def __init__(self) -> None:
        import torch

        self._first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def measure(self, call: Callable[[], object], calls: int) -> Elapsed:
        self._first.record()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        stop = time.perf_counter()
        self._last.record()
        self._last.synchronize()
        milliseconds = self._first.elapsed_time(self._last)
        return Elapsed(milliseconds / 1e3 / calls, (stop - start) / calls)


def samples(
    timers: Mapping[str, Timer], repeats: int, budget: float, limit: int = HostClock.limit
) -> dict[str, list[Elapsed]]:
    """Take samples of each timer, in turns.

    Args:
        timers: the timers by name.
        repeats: the number of samples of each; _FEW if a call is slow.
        budget: the seconds that a sample should last.
        limit: the maximum number of calls of a sample.
    """
    calls, longest = {}, 0.0
    for name, timer in timers.items():
        timer(1)
        calls[name], seconds = 1, 0.0
        while True:
            seconds = max(timer(calls[name]).seconds, _LEAST)
            if seconds * calls[name] >= budget / 4 or calls[name] == limit:
                break
            calls[name] = min(limit, max(2 * calls[name], int(budget / 2 / seconds)))
        calls[name] = max(1, min(limit, round(budget / seconds)))
        longest = max(longest, seconds)
    filled = {name: partial(timer, calls[name]) for name, timer in timers.items()}
    return in_turns(filled, min(repeats, _FEW) if longest > _LONG else repeats)


def in_turns(timers: Mapping[str, Callable[[], Elapsed]], repeats: int) -> dict[str, list[Elapsed]]:
    """Take samples of each timer, one of each in turn."""
    rounds = [{name: timer() for name, timer in timers.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in timers}


def figures(
    measured: Mapping[str, Sequence[Elapsed]],
    baseline: Callable[[str], str],
    *,
    key: str = "library",
    **about: object,
) -> list[Figure]:
    """Return a figure for each name: the median of its samples, and their ninth decile over it.

    Args:
        measured: the samples by name.
        baseline: returns the name that a name is compared with.
        key: the column of the names.
        **about: the columns before it.
    """
    medians = {name: _median(each) for name, each in measured.items()}
    found = []
    for name, (seconds, host) in medians.items():
        theirs = medians.get(baseline(name), Elapsed(0.0))
        times = sorted(each.seconds for each in measured[name])
        found.append(
            {
                **about,
                key: name,
                "seconds": seconds,
                "times_faster": theirs.seconds / seconds if theirs.seconds else None,
                "spread": times[len(times) * 9 // 10] / seconds,
                "host_seconds": host,
                "host_times_faster": theirs.host / host if theirs.host and host else None,
                "samples": [each.seconds for each in measured[name]],
            }
        )
    return found


def _median(measured: Sequence[Elapsed]) -> Elapsed:
    hosts = [each.host for each in measured if each.host is not None]
    return Elapsed(
        statistics.median(each.seconds for each in measured),
        statistics.median(hosts) if hosts else None,
    )
