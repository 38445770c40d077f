"""Proves that correct random programs end correctly, and that a mistake of one rank results in an
error on every rank that names it.
"""

from __future__ import annotations

import os

import pytest

from tests.reliability.random_programs import endure, run_programs
from tests.support.tier import FULL

_SEED = int(os.environ.get("PYNCCL_SEED", "0"))
_PROGRAMS = 300 if FULL else 6


@pytest.mark.parametrize(
    ("mistaken", "checked"),
    [(False, False), (False, True), (True, False)],
    ids=["right", "right and compared", "mistaken"],
)
def test_random_programs(mistaken: bool, checked: bool) -> None:
    seeds = range(_SEED, _SEED + _PROGRAMS)
    failures = run_programs(seeds, "host", mistaken=mistaken, checked=checked)
    texts = [f"{failure.what}\n{failure.text}" for failure in failures]
    assert not texts, f"{len(texts)} of {_PROGRAMS} failed\n" + "\n\n".join(texts[:5])


def test_endurance() -> None:
    """The long form: python -m tests.reliability.random_programs --seconds 600."""
    result = endure(60 if FULL else 1, seed=_SEED)
    texts = [f"{failure.what}\n{failure.text}" for failure in result.failures]
    assert not texts, f"{len(texts)} of {result.programs} failed\n" + "\n\n".join(texts[:5])
    assert result.operations > 0
    assert len(result.memory) == 4
    assert not FULL or not result.growing  # a few seconds are not enough
