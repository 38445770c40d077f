"""Proves that docs/mirror.md is what mirror_table.py makes of both modules."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import mirror_table


def test_page_is_current() -> None:
    assert mirror_table.PAGE.read_text() == mirror_table.page(), (
        "run python tests/mirror/mirror_table.py"
    )
