"""Fixtures: those of the mirror's tests."""

from tests.mirror.conftest import any_world, world

__all__ = ["any_world", "world"]
