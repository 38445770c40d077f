"""After the build: every link of the site leads somewhere, as far as can be seen without a network.

Links inside the site are followed, with their anchors. Those to other sites must be complete
addresses; `make docs-links` follows them.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

_log = logging.getLogger(__name__)


class _Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep its id, and where it leads."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def _external_error(link: str) -> str | None:
    """What is wrong with the address of another site."""
    try:
        parts = urlsplit(link)
    except ValueError as error:
        return str(error)
    if parts.scheme in ("mailto", "data"):
        return None
    if parts.scheme not in ("http", "https"):
        return f"the scheme is {parts.scheme!r}"
    host = parts.hostname or ""
    if "." not in host or " " in link or host.startswith(".") or host.endswith("."):
        return "it is not an address"
    return "there are two anchors" if parts.fragment.count("#") else None


def _check(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    root = Path(app.outdir)
    pages = {path: _Page(path.read_text()) for path in sorted(root.rglob("*.html"))}
    count = 0
    for path, page in pages.items():
        where = path.relative_to(root)
        for link in sorted(page.links):
            count += 1
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                if text := _external_error(link):
                    _log.warning("%s: link to %s: %s", where, link, text)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                _log.warning("%s: link to %s, which is not there", where, link)
            elif target in pages and parts.fragment:
                anchors = pages[target].anchors
                if unquote(parts.fragment) not in anchors:
                    _log.warning("%s: link to %s, which has no such anchor", where, link)
    _log.info("%d links on %d pages were checked", count, len(pages))


def setup(app: Any) -> dict[str, Any]:
    """Register the check."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
