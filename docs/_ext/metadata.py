"""What search engines and previews of links show of a page: its title and its first paragraph."""

from __future__ import annotations

import html
from typing import Any

from docutils import nodes

_LENGTH = 200  # of a description, in characters


def _describe(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    paragraph = next(iter(doctree.findall(nodes.paragraph)), None) if doctree else None
    if paragraph is None:
        return
    text = " ".join(paragraph.astext().split())
    if len(text) > _LENGTH:
        text = f"{text[:_LENGTH].rpartition(' ')[0]} ..."
    title = nodes.Text(context["title"]).astext()
    tags = {
        'name="description"': text,
        'property="og:type"': "website",
        'property="og:site_name"': app.config.project,
        'property="og:title"': title,
        'property="og:description"': text,
    }
    context["metatags"] += "".join(
        f'<meta {name} content="{html.escape(value)}" />\n' for name, value in tags.items()
    )


def setup(app: Any) -> dict[str, Any]:
    """Register the description of pages."""
    app.connect("html-page-context", _describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
