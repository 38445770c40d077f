"""Probes: additional runs that determine why a communication is not hidden.

A gate is a host function that blocks a stream for a known time and occupies nothing else. Work that
begins before the gate of a stream opens does not wait for that stream.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pynccl import nccl
from pynccl.tools.lab.loads import Gemm, Load, MemoryBound, Sleep, fit
from pynccl.tools.lab.steps import Enqueue, Step, Steps, Together, align, maximum, new_event
from pynccl.tools.lab.tensors import has_torch
from pynccl.tools.lab.verdict import Evidence

__all__ = ["Probes"]

_GATE = 3.0  # a gate's duration, as a multiple of the longer function
_SHORTEST_GATE = 5e-3
_LONG = 0.2  # seconds; longer runs are repeated less
_RESOLVED = 2e-4  # seconds that work must take to be detected on a stream
_COVER = 3.0  # a load's duration, as a multiple of the communication beside it
_CACHED_SIDE = 256
_BEYOND_CACHES = 2**26


class _Gated(NamedTuple):
    """The seconds of runs behind a gate, agreed by the ranks.

    The minimum over the runs counts. Work that waits for the gate never finishes before it opens.
    Work that does not wait finishes earlier in at least one run, even on a busy machine.

    Attributes:
        compute: the shortest time from the opening of the gate until the compute stream was done.
        communication: the same for the communication stream.
        called: the shortest time that all the calls took.
        most: the longest times instead of the shortest, by "compute" and "communication".
    """

    compute: float
    communication: float
    called: float
    most: Mapping[str, float]


class Probes:
    """Runs the probes, given the seconds of the longer function; all ranks call each method."""

    def __init__(self, steps: Steps, longest: float, *, first: str) -> None:
        self._steps = steps
        self._first = first
        self._gate = max(_GATE * longest, _SHORTEST_GATE)
        self._events = [new_event(steps.comm) for _ in range(4)]

    def structure(
        self,
        compute: Enqueue,
        communicate: Enqueue,
        compute_seconds: float,
        communication_seconds: float,
        *,
        together: Together | None,
    ) -> Evidence:
        """Determine whether streams, the host or events make one function wait for the other."""
        streams = self._steps.compute, self._steps.communication
        if streams[0].handle == streams[1].handle:
            return Evidence(first=self._first, same_stream=True)
        names = ("compute", "communication")
        on_host = self._steps.comm.provider == "host"
        functions = dict(zip(names, (compute, communicate), strict=True))
        seconds = dict(zip(names, (compute_seconds, communication_seconds), strict=True))
        same, waiting = False, set[str]()
        synchronising, on_default = set[str](), set[str]()
        for name, function in functions.items():
            own = streams[names.index(name)]
            other_name = names[1 - names.index(name)]
            other = streams[1 - names.index(name)]
            behind_own = self._behind(own, functools.partial(function, own))
            behind_other = self._behind(other, functools.partial(function, own))
            if max(behind_own.called, behind_other.called) >= 0.9 * self._gate:
                synchronising.add(name)
                continue
            resolved = seconds[name] >= _RESOLVED
            runs_on_own = behind_own.most[name] >= 0.1 * seconds[name]
            # The default stream of a CPU is the thread: the call takes as long as the work.
            in_call = behind_own.called >= 0.25 * seconds[name]
            runs_on_other = getattr(behind_other, other_name) >= 0.25 * seconds[name]
            if resolved and runs_on_other:
                same = True
            elif resolved and not runs_on_own and (in_call or not on_host):
                on_default.add(name)
            elif getattr(behind_other, name) >= 0:
                waiting.add(name)
        if not (same or synchronising or on_default):
            waiting |= self._waits_for_events(functions, together)
        return Evidence(
            same_stream=same,
            default_stream=_who(on_default),
            synchronises=_who(synchronising),
            waits=_who(waiting),
            first=self._first,
        )

    def _waits_for_events(
        self, functions: dict[str, Enqueue], together: Together | None
    ) -> set[str]:
        """Return whose work waits for the other function's work while that is behind a gate."""
        streams = {"compute": self._steps.compute, "communication": self._steps.communication}
        found = set()
        for gated, waits in (("compute", "communication"), ("communication", "compute")):
            if together is not None:
                calls = [functools.partial(together, *streams.values())]
            elif gated == self._first:
                calls = [
                    functools.partial(functions[name], streams[name]) for name in (gated, waits)
                ]
            else:
                continue
            ran = self._behind(streams[gated], *calls)
            if getattr(ran, waits) >= 0:
                found.add(waits)
        return found

    def _behind(self, stream: nccl.Stream, *calls: Callable[[], object]) -> _Gated:
        """Run calls while a stream is blocked."""
        runs = []
        for _ in range(3 if self._gate < _LONG else 2):
            align(self._steps.comm, self._steps.own)
            origin, opened, *ends = self._events
            origin.record(self._steps.own)
            began = time.perf_counter()
            Sleep(self._gate)(stream)
            opened.record(stream)
            for call in calls:
                call()
            called = time.perf_counter() - began
            streams = self._steps.compute, self._steps.communication
            for end, of in zip(ends, streams, strict=True):
                end.record(of)
            for of in (*streams, self._steps.own):
                of.synchronize()
            gate, *done = (origin.elapsed_time(event) for event in (opened, *ends))
            runs.append((*(end - gate for end in done), called))
        columns = list(zip(*runs, strict=True))
        extremes = [*map(min, columns), *map(max, columns[:2])]
        agreed = maximum(self._steps.comm, self._steps.own, extremes)
        compute, communication, least_called, *most = agreed
        return _Gated(
            compute,
            communication,
            least_called,
            most=dict(zip(("compute", "communication"), most, strict=True)),
        )

    def contention(
        self,
        evidence: Evidence,
        communicate: Enqueue,
        seconds: float,
        loads: tuple[Enqueue, Enqueue] | None,
    ) -> Evidence:
        """Measure the communication beside a memory-bound and a compute-bound load.

        Args:
            evidence: the results so far.
            communicate: enqueues the communication.
            seconds: duration of the communication alone, between its events.
            loads: the two loads; None creates them.

        Returns:
            The evidence, with the slowdowns if torch is installed.
        """
        if loads is None:
            if not has_torch():
                return evidence
            comm = self._steps.comm
            made: list[Load] = [MemoryBound(comm, _BEYOND_CACHES), Gemm(comm, _CACHED_SIDE)]
            for load in made:
                load(self._steps.compute)  # the first call is slower
                fit(load, _COVER * seconds, comm, self._steps.compute)
            loads = made[0], made[1]
        each = (Step(None, communicate), *(Step(load, communicate) for load in loads))
        rounds = [self._lengths(each) for _ in range(5 if seconds < _LONG else 3)]
        alone, *beside = (statistics.median(column) for column in zip(*rounds, strict=True))
        memory, arithmetic = (length / max(alone, 1e-9) for length in beside)
        return dataclasses.replace(evidence, beside_memory=memory, beside_arithmetic=arithmetic)

    def _lengths(self, steps: Sequence[Step]) -> list[float]:
        lengths = []
        for step in steps:
            align(self._steps.comm, self._steps.own)
            span = self._steps.run(step).communication
            lengths.append(span.ended - span.began)
        return maximum(self._steps.comm, self._steps.own, lengths)


def _who(names: set[str]) -> str | None:
    return "both" if len(names) == 2 else next(iter(names), None)
