"""Proves that docs/mirror.md is what tools/mirror_table.py makes of both modules."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from tools import mirror_table

_OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


@pytest.mark.skipif(_OLDER, reason="the page lists what torch 2.13 has")
def test_page_is_current() -> None:
    assert mirror_table.PAGE.read_text() == mirror_table.page(), "run python -m tools.mirror_table"
