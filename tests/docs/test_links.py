"""Proves that the check of the built site finds exactly the broken links and anchors."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_SOURCE = Path(__file__).parents[2] / "docs" / "_ext" / "links.py"


def test_broken_links(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("links", _SOURCE)
    assert spec
    assert spec.loader
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    (tmp_path / "lab").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="lab/"></a><a href="lab/index.html#a%20b">'
        '</a><a href="https://example.com/none#x"></a><img src="none.png"><a href="#none"></a>'
    )
    (tmp_path / "lab" / "index.html").write_text(
        '<a name="a b"></a><a href="../index.html#top"></a><a href="../index.html#none"></a>'
        '<a href="other.html"></a><a href="../lab/index.html?q=1"></a>'
    )
    assert list(links.broken(tmp_path)) == [
        (Path("index.html"), "#none"),
        (Path("index.html"), "none.png"),
        (Path("lab/index.html"), "../index.html#none"),
        (Path("lab/index.html"), "other.html"),
    ]
