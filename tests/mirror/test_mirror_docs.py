"""Proves that the tables of docs/mirror.md are the current output of tools/mirror_table.py."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.mirror.test_signatures import INSTALLED, MIRRORED_TORCH
from tools import mirror_table


@pytest.mark.skipif(INSTALLED > MIRRORED_TORCH, reason="a newer torch may have more names")
def test_page_is_current() -> None:
    text = mirror_table.PAGE.read_text()
    assert text == mirror_table.page(text), "run python -m tools.mirror_table"
