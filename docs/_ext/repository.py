"""Pages and links that leave docs/: files of the repository that are pages of the site, and others.

On GitHub the links of the pages work as they are. Here a link to a file that is a page of the site
becomes a link to that page, and one to a folder or to another file a link to the repository, where
its address is known ([project.urls] of pyproject.toml), else the text alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.util import logging

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"

# Pages of the site and the files of the repository that have their content. The home page also has
# the tables of contents of its own file.
PAGES = {
    "index": "README.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/changelog": "CHANGELOG.md",
    "project/security-policy": "SECURITY.md",
    "project/code-of-conduct": "CODE_OF_CONDUCT.md",
    "project/examples": "examples/README.md",
}
_FILES = {_ROOT / file: _DOCS / f"{page}.md" for page, file in PAGES.items()}
_LINK = re.compile(
    r"(?P<text>!?\[(?:[^\]\[`]|`[^`]*`)*\])\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)
_log = logging.getLogger(__name__)


def repository_url() -> str | None:
    """The address of the sources, as pyproject.toml has it."""
    text = (_ROOT / "pyproject.toml").read_text()
    found = re.search(r'^(?:Repository|Source|source|repository) = "([^"]+)"', text, re.MULTILINE)
    return found[1].rstrip("/") if found else None


def _rewritten(match: re.Match[str], source: Path, page: Path) -> str:
    target, anchor = match["target"], match["anchor"] or ""
    if re.match(r"[a-z][a-z+.-]*:", target):
        return match[0]
    path = Path(os.path.normpath(source.parent / target))
    if not path.exists():
        _log.warning("%s: link to %s, which is not there", source.relative_to(_ROOT), target)
        return match[0]
    if path in _FILES:
        path = _FILES[path]
    elif not path.is_relative_to(_DOCS) or path.is_dir():
        url = repository_url()
        kind = "tree" if path.is_dir() else "blob"
        where = path.relative_to(_ROOT).as_posix()
        return f"{match['text']}({url}/{kind}/main/{where})" if url else match["text"][1:-1]
    return f"{match['text']}({os.path.relpath(path, page.parent)}{anchor})"


def _read(app: Any, docname: str, content: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return
    source = _ROOT / PAGES[docname] if docname in PAGES else page
    if docname in PAGES:
        app.env.note_dependency(str(source))
        own = content[0] if docname == "index" else ""
        content[0] = f"{source.read_text()}\n{own}"
    parts = re.split(r"(^```.*?^```$)", content[0], flags=re.DOTALL | re.MULTILINE)
    content[0] = "".join(
        part if i % 2 else _LINK.sub(lambda found: _rewritten(found, source, page), part)
        for i, part in enumerate(parts)
    )


def setup(app: Any) -> dict[str, Any]:
    """Register the reading of pages."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
