"""Fixtures: that of the mirror's tests."""

from tests.mirror.conftest import world

__all__ = ["world"]
