"""Tests of the double itself; they run where it is active (``-p tests.doubles.plugin``)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _active() -> None:
    if "CUDA_DOUBLE_LIBRARIES" not in os.environ:
        pytest.skip("the CUDA double is not active: pass -p tests.doubles.plugin")


@pytest.fixture
def no_violations() -> Iterator[None]:
    """Begin with no reports of the process."""
    from tests.doubles import library

    library.violations(clear=True)
    yield
    library.violations(clear=True)
