"""Proves that the overlap lab recovers planted overlaps, eagerly and from graphs, that each planted
fault gets its verdict, and that all ranks return the same row.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pynccl import nccl
from pynccl.tools import lab
from tests.lab import planted
from tests.support import gpu
from tests.support.launcher import Launcher
from tests.support.rank import Rank

pytestmark = pytest.mark.serial  # judged by times

# Other processes delay a sleep by some milliseconds, which matters less for longer ones.
_TRIES = [0.02] * 8 + [0.1] * 4 + [0.5] * 3  # seconds of a load


def _measure(
    launch: Launcher,
    accept: Callable[[lab.Row], bool],
    make: Callable[..., planted.Planted],
    *args: object,
    provider: str = "host",
    **options: object,
) -> lab.Row:
    """A row, measured again with more rounds if it is not as planted."""
    if provider == "cuda":
        gpu.require_devices(2)  # kernels of processes that share a GPU take turns
    for attempt, seconds in enumerate(_TRIES, 1):
        given = {"repeats": 7 * min(attempt, 3), **options}
        rows = launch(2, planted.measure, make, args, given, seconds, provider=provider)
        if accept(rows[0]):
            break
    assert all(row == rows[0] for row in rows), "the ranks disagree"
    return rows[0]


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_a_planted_overlap_is_recovered(launch: Launcher, provider: str, hidden: float) -> None:
    kind = {0.0: "serialised", 0.5: "partly hidden", 1.0: "hidden"}[hidden]

    def accept(row: lab.Row) -> bool:
        seconds = min(_TRIES, key=lambda one: abs(one - row.compute.median))
        return (
            row.verdict.kind == kind
            and row.hidden == pytest.approx(hidden, abs=0.05)
            and row.exposed == pytest.approx((1 - hidden) * seconds, abs=0.06 * seconds)
            and row.compute.median == pytest.approx(seconds, rel=0.1)
            and row.communication.median == pytest.approx(seconds, rel=0.1)
        )

    row = _measure(launch, accept, planted.by_event, hidden, provider=provider)
    assert accept(row), row.as_dict()
    if hidden < 1:
        assert row.verdict.reason == "event"
        assert row.evidence.waits == "communication"


def _check(
    launch: Launcher,
    verdict: tuple[str, str],
    make: Callable[..., planted.Planted],
    *args: object,
    times: Callable[[lab.Row], bool] = lambda _: True,
    **options: object,
) -> lab.Row:
    """Check that a row has this verdict and these times."""

    def accept(row: lab.Row) -> bool:
        return (row.verdict.kind, row.verdict.reason) == verdict and times(row)

    row = _measure(launch, accept, make, *args, **options)  # type: ignore[arg-type]
    assert accept(row), (row.verdict, row.as_dict())
    return row


def _measure_again(rank: Rank, limit: float, until_certain: bool | float) -> lab.Row:
    """A row whose compute varies by more than the communication's duration."""
    chance = random.Random(0)

    def compute(stream: nccl.Stream) -> None:
        lab.Sleep(chance.uniform(0.001, 0.01))(stream)

    return lab.overlap(
        compute,
        lab.Sleep(0.001),
        comm=rank.comm,
        repeats=6,
        until_certain=until_certain,
        limit=limit,
        evidence=False,
    )


def test_until_certain(launch: Launcher) -> None:
    for until_certain in (True, 1.0):
        row = launch(2, _measure_again, 1.0, until_certain)[0]
        assert row.verdict.kind == "not certain"
        assert row.repeats_to_decide
        assert len(row.both.samples) > 6


def test_the_limit_of_further_rounds_does_not_end_the_first_ones(launch: Launcher) -> None:
    row = launch(2, _measure_again, 60.0, 0.001)[0]
    assert len(row.both.samples) == 6


def test_longer_than_the_compute(launch: Launcher, provider: str) -> None:
    verdict = ("partly hidden", "longer than the compute")
    _check(
        launch,
        verdict,
        planted.independent,
        2.0,
        times=lambda row: row.hidden == pytest.approx(0.5, abs=0.05),
        provider=provider,
    )


@pytest.mark.parametrize("make", [planted.one_stream, planted.stream_of_the_other])
def test_same_stream(launch: Launcher, provider: str, make: Callable[..., planted.Planted]) -> None:
    _check(launch, ("serialised", "same stream"), make, provider=provider)


def test_default_stream(launch: Launcher) -> None:
    row = _check(launch, ("serialised", "default stream"), planted.default_stream)
    assert row.evidence.default_stream == "compute"


@pytest.mark.parametrize("which", ["compute", "communication"])
def test_synchronisation(launch: Launcher, provider: str, which: str) -> None:
    verdict = ("serialised", "synchronisation")
    row = _check(launch, verdict, planted.synchronising, which, provider=provider)
    assert row.evidence.synchronises == which


def test_a_call_that_waits_last_delays_nothing(launch: Launcher) -> None:
    _check(
        launch,
        ("hidden", ""),
        planted.synchronising,
        "communication",
        times=lambda row: row.hidden > 0.95,
        first="compute",
    )


def test_a_shared_resource(launch: Launcher) -> None:
    """On a GPU, a compute that occupies all SMs results in these numbers."""
    row = _check(launch, ("serialised", "shared resource"), planted.locked)
    numbers = {
        "compute": row.compute.median,
        "communication": row.communication.median,
        "both": row.both.median,
        "compute_slowdown": row.compute_slowdown,
        "communication_slowdown": row.communication_slowdown,
    }
    on_gpu = lab.classify(**numbers, evidence=row.evidence, provider="cuda")
    assert (on_gpu.kind, on_gpu.reason) == ("serialised", "no free SMs")


@pytest.mark.parametrize(
    ("memory", "arithmetic", "reason"),
    [(1.8, 1.0, "memory bandwidth"), (1.8, 1.7, "cores"), (1.0, 1.6, "cores")],
)
def test_contention(launch: Launcher, memory: float, arithmetic: float, reason: str) -> None:
    verdict = ("slowed by contention", reason)
    _check(
        launch,
        verdict,
        planted.contended,
        memory,
        arithmetic,
        times=lambda row: (
            row.communication_slowdown > 1.2
            and row.evidence.beside_memory == pytest.approx(memory, rel=0.2)
            and row.evidence.beside_arithmetic == pytest.approx(arithmetic, rel=0.2)
        ),
    )


@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_from_graphs(launch: Launcher, provider: str, hidden: float) -> None:
    make = planted.one_stream if hidden == 0 else planted.independent
    row = _measure(
        launch, lambda row: abs(row.hidden - hidden) < 0.05, make, form="graph", provider=provider
    )
    assert row.hidden == pytest.approx(hidden, abs=0.05)
