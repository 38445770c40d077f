"""A check of the built site: each link within it leads to a page or file, and to an anchor there.

Sphinx and MyST check the links that pages write. This also covers the links of the reference, of
the theme and of raw HTML, and anchors of generated pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The anchors and the links of an HTML file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of an element."""
        for name, value in attrs:
            if value and (name == "id" or (tag, name) == ("a", "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.add(value)


def broken(site: Path) -> Iterator[tuple[Path, str]]:
    """Yield the page and the target of each broken link within a site."""
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = Path(os.path.normpath(path.parent / unquote(parts.path)))
            if target.is_dir():
                target /= "index.html"
            fragment = unquote(parts.fragment)
            lacks_anchor = target in pages and fragment not in {"", *pages[target].anchors}
            if lacks_anchor or not target.exists():
                yield path.relative_to(site), link


def _check(app: Any, error: Exception | None) -> None:
    from sphinx.util import logging  # the tests of broken() do not need Sphinx

    if error is None and app.builder.format == "html":
        for page, link in broken(Path(app.outdir)):
            logging.getLogger(__name__).warning("%s: broken link %s", page, link)


def setup(app: Any) -> dict[str, Any]:
    """Register the check."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
