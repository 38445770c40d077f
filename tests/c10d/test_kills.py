"""Proves that the survivors of a kill in training get an error, and continue with bitwise the
results of an undisturbed world.

The long form: python -m tests.c10d.kills --kills 300.
"""

from __future__ import annotations

import pytest

from pynccl.c10d.build import build
from tests.c10d import kills
from tests.support.tier import FULL


@pytest.mark.parametrize("number", range(50 if FULL else 2))
def test_kills(number: int) -> None:
    build()  # takes longer than a rank may
    assert kills.run(kills.Trial.of(0, number)) is None
