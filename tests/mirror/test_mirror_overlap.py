"""Proves that the mirror refuses tensors whose overlap NCCL leaves undefined, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.overlaps import check_overlaps


def _overlaps(dist: Any, rank: int, _size: int) -> None:
    check_overlaps(dist, rank)


def test_overlaps(world: Callable[..., list[Any]]) -> None:
    world(2, _overlaps)
