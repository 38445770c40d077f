"""Proves which numbers give which verdict, those of GPUs too, and that evidence is asked for only
where the times alone do not say why.
"""

from __future__ import annotations

import dataclasses

import pytest

from pynccl.tools.lab import Evidence, Row, Span, Timing, classify, output
from pynccl.tools.lab.verdict import needs_evidence

_NONE = Evidence(same_stream=False)
_AFTER = Evidence(waits="communication")
_BOTH = Evidence(beside_memory=3, beside_arithmetic=2)
_MEMORY = Evidence(beside_memory=1.6, beside_arithmetic=1.05)
_CORES = Evidence(beside_memory=1.6, beside_arithmetic=1.5)
_BANDWIDTH = Evidence(beside_memory=2, beside_arithmetic=1)
_MORE = Evidence(beside_memory=5, beside_arithmetic=2)
_WAITS = Evidence(waits="both", beside_compute=1.5, beside_memory=2, beside_arithmetic=1)
_CASES = [
    # T_compute, T_comm, T_both, slowdowns, evidence, provider, verdict
    (10, 4, 10.1, 1, 1, _NONE, "cuda", "hidden", ""),
    (10, 4, 14, 1, 3.5, _NONE, "cuda", "serialised", "no free SMs"),
    (10, 10, 20, 1, 2, _NONE, "cuda", "serialised", "no free SMs"),
    (10, 10, 20, 1, 2, _NONE, "host", "serialised", "shared resource"),
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
    # One after the other in length, but both slowed: they share something all the time.
    (10, 10, 20, 2, 2, _BANDWIDTH, "cuda", "slowed by contention", "memory bandwidth"),
]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case[-2]}-{case[-1]}-{case[-3]}")
def test_classify(case: tuple) -> None:
    compute, communication, both, of_compute, of_communication, evidence, provider, *expected = case
    verdict = classify(
        compute=compute,
        communication=communication,
        both=both,
        compute_slowdown=of_compute,
        communication_slowdown=of_communication,
        evidence=evidence,
        provider=provider,
    )
    assert [verdict.kind, verdict.reason] == expected
    assert bool(verdict.explanation) == (verdict.kind != "hidden")


def test_evidence_is_needed_only_where_the_times_do_not_say_why() -> None:
    assert not needs_evidence(10, 4, 10.1)  # hidden
    assert not needs_evidence(10, 30, 30)  # at the bound
    assert needs_evidence(10, 10, 15)
    assert needs_evidence(100, 10, 104)


def test_noise_is_called_noise() -> None:
    numbers = {"compute": 10, "communication": 10, "both": 11}
    slowdowns = {"compute_slowdown": 1, "communication_slowdown": 1}
    for spread, noise in ((0.5, False), (2, True)):
        verdict = classify(**numbers, **slowdowns, evidence=_NONE, provider="cuda", spread=spread)
        assert (verdict.kind, verdict.reason) == ("partly hidden", "unknown")
        assert ("noise" in verdict.explanation) == noise


def test_contention_is_named_besides_an_event_only_where_the_compute_contends() -> None:
    numbers = {"compute": 10, "communication": 10, "both": 15}
    slowdowns = {"compute_slowdown": 1, "communication_slowdown": 1.5}
    for beside_compute, named in ((1.0, False), (1.5, True)):
        evidence = Evidence(
            waits="communication",
            beside_compute=beside_compute,
            beside_memory=2,
            beside_arithmetic=1,
        )
        verdict = classify(**numbers, **slowdowns, evidence=evidence, provider="cuda")
        assert ("memory bandwidth" in verdict.explanation) == named


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
    assert row.exposed_spread == pytest.approx(0.3)
    assert row.compute.quartiles == pytest.approx((9.5, 11))


def test_a_table_of_rows_without_settings() -> None:
    row = dataclasses.replace(_row(10, 4, 12), setting={})
    header, line, other = output.write_table([row, row]).splitlines()
    assert header.split()[:2] == ["T_compute", "T_comm"]
    assert line.split()[0] == other.split()[0] == "10000.000"
