"""Tests of the double itself. They run only if it is active (``-p tests.doubles.plugin``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_configure() -> None:
    """Reject this folder as an argument without the double. Else tests/conftest.py ignores it."""
    if "CUDA_DOUBLE_LIBRARIES" not in os.environ:
        raise pytest.UsageError(
            "the tests of the CUDA double need it: "
            "python -m pytest -p tests.doubles.plugin tests/doubles"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder ``double`` before -m selects."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("double")


@pytest.fixture
def no_violations() -> Iterator[None]:
    """Discard earlier violations of this process."""
    from tests.doubles import library

    library.violations(clear=True)
    yield
    library.violations(clear=True)
