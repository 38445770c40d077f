"""HOSTNCCL_DELAY_SEED also delays the double's streams, and exposes missing waits there."""

from __future__ import annotations

from tests.nccl.test_delays import race
from tests.support.launcher import Launcher


def test_a_missing_wait_is_found_by_most_seeds(launch: Launcher) -> None:
    assert max(launch(2, race, True, provider="cuda", ids=2)) == 0
    assert min(launch(2, race, False, provider="cuda", ids=2)) > 25
