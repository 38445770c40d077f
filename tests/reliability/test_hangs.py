"""Proves that nothing of what hung before there were time limits waits longer than its limit: each
rank that waits gets an error that names the operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.reliability.hangs import HANGS, LIMIT, hang, hang_leaving_nothing
from tests.reliability.workers import Forks, Lane

_SOON = 20.0  # seconds after the limit, on a busy machine
_STUCK = 30.0


@pytest.fixture(scope="module")
def lane(forks: Forks) -> Iterator[Lane]:
    lane = Lane(forks)
    yield lane
    lane.close()


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_ends(lane: Lane, name: str) -> None:
    entry = HANGS[name]
    everyone = range(entry.nranks)
    with lane.world(entry.nranks) as world:
        world.start("host", hang if entry.answers else hang_leaving_nothing, name)
        world.gather(everyone, "done", _STUCK)
        world.say(everyone, "go")
        endings = world.join(everyone, _STUCK)
    raising = everyone if entry.raising is None else entry.raising
    assert not raising or any(ending for _, ending in endings)
    for rank, (took, ending) in enumerate(endings):
        text = ending and f"{ending.kind}: {ending.text}"
        assert took < LIMIT + _SOON, f"rank {rank} took {took:.2f} s: {text}"
        assert entry.some or (ending is not None) == (rank in raising), f"rank {rank}: {text}"
        if ending is not None:
            assert re.search(entry.names, ending.text, re.IGNORECASE), f"rank {rank}: {text}"
