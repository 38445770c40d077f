"""Times libraries in turns, in samples of many calls, and gives their medians and spreads."""

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

_LONG = 0.1  # seconds of one call; longer ones get few samples
_FEW = 3
_LEAST = 1e-9  # seconds: events on a GPU can have the same time

# One library's or way's times, by column; benchmarks.report prints them and writes them to JSON.
Figure: TypeAlias = dict[str, Any]


class Elapsed(NamedTuple):
    """Seconds of one call on average; host is the time until it returns, where that is not all."""

    seconds: float
    host: float | None = None


# Takes a sample of so many calls, a mean over the calls and a maximum over the ranks.
Timer: TypeAlias = Callable[[int], Elapsed]


class HostClock:
    """Measures calls that return when they are done.

    Attributes:
        limit: calls that may be measured at once.
    """

    limit = 100_000

    def measure(self, call: Callable[[], object], calls: int) -> Elapsed:
        """Make the call so many times and wait for the last one."""
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return Elapsed((time.perf_counter() - start) / calls)


class CudaClock(HostClock):
    """The same for calls that enqueue work on, or before, the current stream."""

    # A full launch queue would block the host and be counted as its time.
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
    """Time each in turns.

    Args:
        timers: by name.
        repeats: samples of each; few where one call takes long.
        budget: seconds that a sample should last.
        limit: calls of a sample at most.
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
    """Take so many samples of each, one of each in turn."""
    rounds = [{name: timer() for name, timer in timers.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in timers}


def figures(
    measured: Mapping[str, Sequence[Elapsed]],
    baseline: Callable[[str], str],
    *,
    key: str = "library",
    **about: object,
) -> list[Figure]:
    """A figure for each name: the median of its samples, and their ninth decile over the median.

    Args:
        measured: the samples by name.
        baseline: from a name to the one that it is compared with.
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
