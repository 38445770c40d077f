"""Conversion of sizes in bytes to and from text."""

from __future__ import annotations

import re

__all__ = ["parse_size", "size_text"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def size_text(nbytes: int) -> str:
    """Format a size: ``64 KiB``, ``1000 B``."""
    for name in ("G", "M", "K"):
        if nbytes and nbytes % _UNITS[name] == 0:
            return f"{nbytes // _UNITS[name]} {name}iB"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Parse a number of bytes, with units that are powers of 1024: ``4``, ``64K``, ``16MB``,
    ``1GiB``.

    Raises:
        ValueError: text is not a size above 0.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)(I?B)?", text.strip().upper())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a size in bytes; write 4, 64K, 16MB")
    return int(match[1]) * _UNITS[match[2]]
