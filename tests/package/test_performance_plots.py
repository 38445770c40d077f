"""Proves that the pictures of docs/performance.md are those of its tables, and are shown there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import performance_plots

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("path", performance_plots.PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_that_of_its_table(path: Path) -> None:
    checksum = performance_plots.checksum(performance_plots.PICTURES[path])
    assert checksum.encode() in path.read_bytes(), "python -m tools.performance_plots"
    assert f"]({path.relative_to(_DOCS)})" in (_DOCS / "performance.md").read_text()
