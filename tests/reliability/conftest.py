"""Fixtures: the process that forks workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.workers import FOR_GPUS, Forks


@pytest.fixture(scope="module")
def forks(request: pytest.FixtureRequest) -> Iterator[Forks]:
    """Forks workers; afterwards none is left."""
    on_gpus = any(
        item.path == request.path and item.get_closest_marker("gpu")
        for item in request.session.items
    )
    with Forks(FOR_GPUS if on_gpus else ()) as forks:
        yield forks
        forks.check_none_left()
