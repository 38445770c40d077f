"""Proves the verdict for given numbers, including those of GPUs, and that evidence is requested
only if the times alone leave the reason open.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from pynccl.tools.lab import Evidence, Row, Span, Timing, Verdict, classify
from pynccl.tools.lab.row import write_table
from pynccl.tools.lab.verdict import needs_evidence

_NONE = Evidence(same_stream=False)
_AFTER = Evidence(waits="communication")
_BOTH = Evidence(beside_memory=3, beside_arithmetic=2)
_MEMORY = Evidence(beside_memory=1.6, beside_arithmetic=1.05)
_CORES = Evidence(beside_memory=1.6, beside_arithmetic=1.5)
_BANDWIDTH = Evidence(beside_memory=2, beside_arithmetic=1)
_MORE = Evidence(beside_memory=5, beside_arithmetic=2)
_WAITS = Evidence(waits="both", beside_memory=2, beside_arithmetic=1)
_CASES = [
    # T_compute, T_comm, T_both, slowdowns, evidence, provider, verdict
    (10, 4, 10.1, 1, 1, _NONE, "cuda", "hidden", ""),
    (10, 4, 14, 1, 3.5, _NONE, "cuda", "serialised", "no free SMs"),
    (10, 10, 20, 1, 2, _NONE, "cuda", "serialised", "no free SMs"),
    (10, 10, 20, 1, 2, _NONE, "host", "serialised", "unknown"),
    (10, 10, 20, 1, 2, _BOTH, "host", "serialised", "no free cores"),
    # The loads would slow it, the compute does not.
    (10, 10, 11, 1, 1, _BOTH, "host", "partly hidden", "unknown"),
    (10, 10, 20, 1, 2, Evidence(same_stream=True), "cuda", "serialised", "same stream"),
    (10, 10, 20, 1, 1, Evidence(default_stream="both"), "cuda", "serialised", "default stream"),
    (10, 10, 20, 1, 1, Evidence(synchronises="compute"), "cuda", "serialised", "synchronisation"),
    (10, 10, 20, 1, 2, Evidence(synchronises="communication"), "cuda", "serialised", "no free SMs"),
    (10, 10, 20, 1, 2, _AFTER, "cuda", "serialised", "event"),
    (10, 10, 15, 1, 1.5, _AFTER, "cuda", "partly hidden", "event"),
    (10, 30, 30, 1, 1, _NONE, "cuda", "partly hidden", "longer than the compute"),
    (10, 10, 15, 1, 1.5, _NONE, "cuda", "partly hidden", "unknown"),
    (100, 10, 104, 1, 1.5, _NONE, "cuda", "partly hidden", "unknown"),
    (10, 10, 15, 1, 1.5, _WAITS, "cuda", "partly hidden", "event"),
    (10, 10, 15, 1.5, 1.5, _NONE, "cuda", "slowed by contention", "unknown"),
    (10, 10, 15, 1.1, 1.5, _MEMORY, "cuda", "slowed by contention", "memory bandwidth"),
    (10, 10, 15, 1.5, 1.5, _CORES, "cuda", "slowed by contention", "SMs"),
    # The loads slow it more than the compute does; arithmetic alone explains the row.
    (10, 10, 15, 1.5, 1.5, _MORE, "host", "slowed by contention", "cores"),
    # As long as one after the other, but both slowed: they share a resource all the time.
    (10, 10, 20, 2, 2, _BANDWIDTH, "cuda", "slowed by contention", "memory bandwidth"),
]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case[-2]}-{case[-1]}-{case[-3]}")
def test_classify(case: tuple) -> None:
    compute, communication, both, of_compute, of_communication, evidence, provider, *expected = case
    slowdowns = {"compute_slowdown": of_compute, "communication_slowdown": of_communication}
    numbers = {"compute": compute, "communication": communication, **slowdowns}
    verdict = _classify(both, evidence, provider=provider, **numbers)
    assert [verdict.kind, verdict.reason] == expected
    assert bool(verdict.explanation) == (verdict.kind != "hidden")


def test_evidence_is_needed_only_if_the_times_leave_the_reason_open() -> None:
    assert not needs_evidence(10, 4, 10.1)  # hidden
    assert not needs_evidence(10, 30, 30)  # at the bound
    assert needs_evidence(10, 10, 15)
    assert needs_evidence(100, 10, 104)


def _classify(both: float, evidence: Evidence = _NONE, **options: object) -> Verdict:
    """Classify 10 ms of each, neither of which is slowed, unless options say otherwise."""
    numbers = {"compute": 10, "communication": 10, "both": both}
    slowdowns = {"compute_slowdown": 1, "communication_slowdown": 1}
    return classify(evidence=evidence, **{**numbers, **slowdowns, "provider": "cuda", **options})


def test_an_exposed_time_within_the_spread_is_not_certain() -> None:
    assert _classify(11, _AFTER, spread=0.5).kind == "partly hidden"
    assert _classify(11, _AFTER, spread=2).kind == "not certain"
    assert _classify(11, _AFTER, spread=2).repeats is None
    assert _classify(16, _AFTER, spread=7).kind == "partly hidden"  # far from hidden


@pytest.mark.parametrize(
    ("both", "interval", "kind", "repeats"),
    [
        (15, (0.41, 0.6), "partly hidden", None),
        (15, (0.35, 0.6), "not certain", 32),  # 1.25 times as wide: 1.5625 times as many
        (15, (-4.0, 9.0), "not certain", 85_000),
        (10.1, (0.85, 1.03), "hidden", None),
        (10.1, (0.81, 3.0), "hidden", None),  # at least 81 %: no more than all can be hidden
        (10.1, (0.7, 1.2), "not certain", 130),
        (10.8, (0.85, 0.94), "partly hidden", None),
        (10.8, (0.85, 0.98), "not certain", 80),  # as hidden, if it is 98 %
        (18.5, (0.12, 0.2), "partly hidden", None),
        (18.5, (0.05, 0.2), "not certain", 80),  # serialised, if it is 5 %
        (19.5, (-0.05, 0.12), "serialised", None),
        (19.5, (-0.5, 0.12), "serialised", None),
    ],
)
def test_an_interval_that_allows_two_verdicts_is_not_certain(
    both: float, interval: tuple[float, float], kind: str, repeats: int | None
) -> None:
    verdict = _classify(both, _AFTER, interval=interval, rounds=20)
    assert verdict.kind == kind
    assert verdict.repeats == repeats
    if repeats is not None:
        number = "more than 10000" if repeats > 10_000 else f"about {repeats}"
        assert f"{number} repeats would decide" in verdict.explanation
        assert verdict.reason == ("event" if both > 10.5 else "")


@pytest.mark.parametrize(("high", "kind"), [(0.945, "partly hidden"), (0.99, "not certain")])
def test_a_communication_as_long_as_the_compute_may_be_hidden(high: float, kind: str) -> None:
    # 94 % are hidden.
    verdict = _classify(10.6, communication=10.4, provider="host", interval=(0.9, high))
    assert verdict.kind == kind


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (Evidence(same_stream=True), "same stream"),
        (Evidence(default_stream="communication"), "default stream"),
        (Evidence(synchronises="compute"), "synchronisation"),
        (_NONE, "no free SMs"),
    ],
)
def test_a_reason_that_the_lanes_contradict_is_dropped(evidence: Evidence, reason: str) -> None:
    after = {"compute": (0.0, 10.0), "communication": (10.0, 20.0)}
    assert _classify(20, evidence, lanes=after).reason == reason
    # The communication runs on another stream: its lane is that of its call alone.
    elsewhere = {"compute": (0.0, 10.0), "communication": (0.1, 0.6)}
    assert evidence == _NONE or _classify(20, evidence, lanes=elsewhere).reason == reason
    # Both begin at once and end late: there is no room for one after the other.
    beside = {"compute": (0.0, 17.0), "communication": (0.0, 20.0)}
    assert _classify(20, evidence, lanes=beside).reason == "unknown"


def test_a_shared_resource_needs_loads_that_slow_nothing() -> None:
    for slowdown, reason in ((1.0, "shared resource"), (1.3, "cores"), (1.6, "no free cores")):
        evidence = Evidence(beside_memory=slowdown, beside_arithmetic=slowdown)
        verdict = _classify(20, evidence, communication_slowdown=2, provider="host")
        assert verdict.reason == reason


def _row(compute: float, communication: float, both: float) -> Row:
    def timing(seconds: float) -> Timing:
        return Timing((seconds * 0.9, seconds, seconds * 1.2))

    return Row(
        timing(compute),
        timing(communication),
        timing(both),
        timing(compute),
        timing(communication),
        timing(compute * 1.5),
        timing(communication * 2),
        evidence=Evidence(),
        spans={"compute": Span(0, compute), "communication": Span(0, both)},
        nranks=2,
        provider="host",
        setting={"nbytes": 1024},
    )


def test_numbers_of_a_row() -> None:
    row = _row(10, 4, 12)
    assert row.exposed == 2
    assert row.hidden == 0.5
    assert row.bound == 10
    assert row.compute_slowdown == 1.5
    assert row.communication_slowdown == 2
    # T_both - T_compute of the rounds: 1.8, 2 and 2.4.
    assert row.exposed_interval == pytest.approx((1.8, 2.4))
    assert row.hidden_interval == pytest.approx((0.5, 0.5))
    assert row.compute.quartiles == pytest.approx((9.5, 11))


def test_a_table_of_rows_without_settings() -> None:
    row = dataclasses.replace(_row(10, 4, 12), setting={})
    header, line, other = write_table([row, row]).splitlines()
    assert header.split()[:2] == ["T_compute", "T_comm"]
    assert line.split()[0] == other.split()[0] == "10000.000"


def test_the_interval_of_a_median() -> None:
    for count, ends in ((3, (1, 3)), (5, (1, 5)), (6, (1, 6)), (20, (6, 15)), (100, (40, 61))):
        samples = random.Random(0).sample(range(1, count + 1), count)
        assert Timing(tuple(map(float, samples))).interval == ends
    assert Timing(tuple(map(float, range(2000)))).interval[0] > 900


def test_noise_is_neither_a_share_above_1_nor_a_verdict() -> None:
    """The times of a busy machine, on which T_compute varies by more than T_comm."""
    compute = Timing((400.0, 90.0, 350.0, 120.0, 380.0, 100.0))
    both = Timing((110.0, 370.0, 90.0, 330.0, 100.0, 80.0))
    row = dataclasses.replace(
        _row(10, 4, 12), compute=compute, both=both, communication=Timing((48.0,) * 6)
    )
    assert row.hidden == 1.0
    assert row.exposed == 0.0
    assert row.exposed_interval == (0.0, 280.0)
    assert row.verdict.kind == "not certain"
    printed = write_table([row])
    assert " 0-100% " in printed
    assert "0.000 (0.000-280000.000)" in printed
