"""Fixtures: communicators of this process, on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pynccl import nccl


@pytest.fixture
def comm() -> Iterator[nccl.Communicator]:
    """A communicator of one rank."""
    with nccl.Communicator.init_all(1, provider="host")[0] as made:
        yield made


@pytest.fixture
def pair() -> Iterator[list[nccl.Communicator]]:
    """The communicators of two ranks, aborted at the end."""
    made = nccl.Communicator.init_all(2, provider="host")
    yield made
    for comm in made:
        comm.abort()
