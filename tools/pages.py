"""Documents with generated parts, each between ``<!-- NAME -->`` and ``<!-- end of NAME -->``."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["replaced"]


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """Return a document with the lines of one part replaced.

    Args:
        text: the document.
        name: the name of the part.
        lines: its new lines.

    Raises:
        ValueError: the document has no such part.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the document has no {begin.strip()} and {end}")
    return before + begin + "\n".join(lines) + "\n" + end + after
