"""The measurement of one row: compute alone, communication alone, both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pynccl import nccl
from pynccl.tools.lab.probes import Probes
from pynccl.tools.lab.row import Row, Span, Timing
from pynccl.tools.lab.steps import (
    Enqueue,
    Ran,
    Step,
    Steps,
    Together,
    align,
    maximum,
    new_event,
    new_stream,
)
from pynccl.tools.lab.verdict import Evidence

__all__ = ["overlap"]

_LEAST_ROUNDS = 3
_SLOWED = 1.05  # a slowdown that is worth explaining
_ORDERED = ("same stream", "default stream", "synchronisation", "event")


def overlap(
    compute: Enqueue,
    communicate: Enqueue,
    *,
    comm: nccl.Communicator,
    together: Callable[[nccl.Stream, nccl.Stream], object] | None = None,
    first: Literal["compute", "communication"] = "compute",
    compute_stream: nccl.Stream | None = None,
    communication_stream: nccl.Stream | None = None,
    form: Literal["eager", "graph"] = "eager",
    repeats: int = 20,
    warmup: int = 3,
    limit: float = 60.0,
    until_certain: bool | float = False,
    evidence: bool = True,
    loads: tuple[Enqueue, Enqueue] | None = None,
    setting: Mapping[str, Any] | None = None,
) -> Row:
    """Measure how much of a communication is hidden behind a compute, and why the rest is exposed.

    Every rank of the communicator calls it with equivalent functions. In each round the compute
    runs alone, the communication alone, and both, in an order that changes from round to round;
    the ranks synchronise in between. A time runs from the call of the first function until all work
    is done, and is the maximum over the ranks. All ranks return the same row.

    The functions enqueue their work on the stream that they are called with. Work that they enqueue
    on other streams must be joined back to it. A function that runs on the other function's stream
    or on a default stream is detected. On CPUs the work consists of functions as well
    (``stream.launch``); torch and NumPy release the GIL in large operations, which can thus run
    beside a communication.

    If the communication is not hidden, further runs look for the reason: each function behind a
    stream that a host function blocks, and the communication beside a memory-bound and a
    compute-bound load.

    Args:
        compute: enqueues the compute on its stream.
        communicate: enqueues the communication on its stream.
        comm: the communicator; the ranks also use it to synchronise and to agree on the times.
        together: enqueues a step of both in its own order, on the compute stream and the
            communication stream. None calls the two functions one after the other.
        first: which of the two is called first in a step without ``together``.
        compute_stream: None creates a stream.
        communication_stream: None creates a stream.
        form: ``"graph"`` captures each of the two functions as a graph, and ``together`` as one,
            and measures their launches. ``together`` as a graph has no separate lanes.
        repeats: number of rounds.
        warmup: number of warm-up rounds.
        limit: seconds after which no further round begins; at least 3 rounds are measured.
        until_certain: whether to measure further rounds, up to the limit, until the times have a
            verdict. A number is the limit of these rounds, in seconds since the first one.
        evidence: whether to look for the reason if the communication is not hidden.
        loads: a memory-bound and a compute-bound load to run beside the communication; None creates
            them if torch is installed.
        setting: stored in the row.

    Returns:
        A Row, with all times in seconds.

    Raises:
        TypeError, ValueError: an argument is invalid.
        DriverError: with ``form="graph"``, a function cannot be captured, for example because it
            synchronises.
        NcclError: NCCL failed.
    """
    _check(compute, communicate, together, first, form)
    for name, number, least in (("repeats", repeats, _LEAST_ROUNDS), ("warmup", warmup, 0)):
        if number < least:
            raise ValueError(f"{name}: {number} is below {least}")
    if not limit > 0:
        raise ValueError(f"limit: {limit} is not above 0")
    steps = Steps(
        comm,
        compute_stream or new_stream(comm),
        communication_stream or new_stream(comm),
    )
    with contextlib.ExitStack() as stack:
        if form == "graph":
            compute, communicate, together = _captured(stack, steps, compute, communicate, together)
        rounds = _Rounds(
            steps, Step(compute, None), Step(None, communicate),
            Step(compute, communicate, together, first),
        )  # fmt: skip
        for _ in range(warmup):
            rounds.run()
        samples: list[_Sample] = []

        def measured(found: Evidence) -> Row:
            return _row(samples, comm, found, setting, interleaved=together is not None)

        began = time.perf_counter()
        most = limit if isinstance(until_certain, bool) else min(limit, until_certain)
        wanted, is_over = repeats, False
        while len(samples) < wanted and not is_over:
            sample, longest = rounds.run(time.perf_counter() - began)
            samples.append(sample)
            limit_now = limit if len(samples) < repeats else most
            is_over = longest > limit_now and len(samples) >= _LEAST_ROUNDS
            if until_certain and len(samples) == wanted:
                needed = measured(Evidence()).repeats_to_decide or 0
                wanted = max(wanted, min(needed, 2 * wanted))
        row = measured(Evidence(first=first))
        if not evidence or not row.needs_evidence:
            return row
        times = row.compute.median, row.communication.median
        probes = Probes(steps, max(times), first=first)
        found = probes.structure(compute, communicate, *times, together=together)
        slowed = max(row.communication_slowdown, row.compute_slowdown) > _SLOWED
        if slowed and measured(found).verdict.reason not in _ORDERED:
            seconds = row.communication_lane.median
            found = probes.contention(found, communicate, seconds, loads)
        return measured(found)


def _check(
    compute: object, communicate: object, together: object, first: object, form: object
) -> None:
    for name, value in (("compute", compute), ("communicate", communicate)):
        if not callable(value):
            raise TypeError(f"{name}: expected a function of a stream, got {value!r}")
    if together is not None and not callable(together):
        raise TypeError(f"together: expected a function of two streams or None, got {together!r}")
    if first not in ("compute", "communication"):
        raise ValueError(f"first: {first!r} is neither 'compute' nor 'communication'")
    if form not in ("eager", "graph"):
        raise ValueError(f"form: {form!r} is neither 'eager' nor 'graph'")


class _Sample(NamedTuple):
    """The seconds of one round, in the order in which the ranks agree on them."""

    compute: float
    communication: float
    both: float
    compute_lane: float
    communication_lane: float
    compute_beside: float
    communication_beside: float
    compute_began: float
    compute_ended: float
    communication_began: float
    communication_ended: float


class _Rounds:
    """Rounds of the three steps."""

    def __init__(self, steps: Steps, compute: Step, communication: Step, both: Step) -> None:
        self._steps = steps
        self._each = compute, communication, both
        self._count = 0

    def run(self, elapsed: float = 0.0) -> tuple[_Sample, float]:
        """Run one round; return the maxima of its times, and of a number, over the ranks."""
        # What ran before changes caches, clocks and threads: each step follows each other one.
        self._count += 1
        order = list(range(3)) if self._count % 2 else [2, 1, 0]
        runs: dict[int, Ran] = {}
        for index in order[self._count % 3 :] + order[: self._count % 3]:
            align(self._steps.comm, self._steps.own)
            runs[index] = self._steps.run(self._each[index])
        compute, communication, both = (runs[index] for index in range(3))
        own = [
            compute.seconds,
            communication.seconds,
            both.seconds,
            compute.compute.ended - compute.compute.began,
            communication.communication.ended - communication.communication.began,
            both.compute.ended - both.compute.began,
            both.communication.ended - both.communication.began,
            both.compute.began,
            both.compute.ended,
            both.communication.began,
            both.communication.ended,
        ]
        *agreed, longest = maximum(self._steps.comm, self._steps.own, [*own, elapsed])
        return _Sample(*agreed), longest


def _captured(
    stack: contextlib.ExitStack,
    steps: Steps,
    compute: Enqueue,
    communicate: Enqueue,
    together: Together | None,
) -> tuple[Enqueue, Enqueue, Together | None]:
    """Graph launches that replace the functions, each of which runs once beforehand."""
    for step in (Step(compute, None), Step(None, communicate)):
        steps.run(step)

    def capture(stream: nccl.Stream, enqueue: Callable[[], object]) -> nccl.Graph:
        with nccl.capture(stream) as graph:
            enqueue()
        stack.callback(graph.close)
        return graph

    on_compute, on_communication = steps.compute, steps.communication
    first = capture(on_compute, lambda: compute(on_compute))
    second = capture(on_communication, lambda: communicate(on_communication))
    whole = None
    if together is not None:
        fork, join = (new_event(steps.comm, timing=False) for _ in range(2))

        def both() -> None:
            fork.record(on_compute)
            on_communication.wait(fork)
            together(on_compute, on_communication)
            join.record(on_communication)
            on_compute.wait(join)

        graph = capture(on_compute, both)
        whole = lambda stream, _: graph.launch(stream)  # noqa: E731
    return first.launch, second.launch, whole


def _row(
    samples: list[_Sample],
    comm: nccl.Communicator,
    evidence: Evidence,
    setting: Mapping[str, Any] | None,
    *,
    interleaved: bool,
) -> Row:
    columns = dict(zip(_Sample._fields, zip(*samples, strict=True), strict=True))
    timings = {name: Timing(column) for name, column in columns.items()}
    ends = {name: timing.median for name, timing in timings.items()}
    return Row(
        **{name: timings[name] for name in _Sample._fields[:7]},
        evidence=evidence,
        spans={
            name: Span(ends[f"{name}_began"], ends[f"{name}_ended"])
            for name in ("compute", "communication")
        },
        nranks=comm.nranks,
        provider=comm.provider,
        setting=dict(setting or {}),
        interleaved=interleaved,
    )
