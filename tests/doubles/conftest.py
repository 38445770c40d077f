"""Tests of the double itself; they run where it is active (``-p tests.doubles.plugin``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_configure() -> None:
    """Refuse this folder by name without the double; else tests/conftest.py leaves it out."""
    if "CUDA_DOUBLE_LIBRARIES" not in os.environ:
        raise pytest.UsageError(
            "the tests of the CUDA double need it: "
            "python -m pytest -p tests.doubles.plugin tests/doubles"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of this folder the mark ``double``, before -m selects."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("double")


@pytest.fixture
def no_violations() -> Iterator[None]:
    """Begin with no reports of the process."""
    from tests.doubles import library

    library.violations(clear=True)
    yield
    library.violations(clear=True)
