"""Tables, sizes, times and lists as text, in one form for all tools."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

__all__ = [
    "columns",
    "list_of",
    "one_of",
    "parse_size",
    "positive",
    "seconds",
    "significant",
    "size_text",
    "table",
    "time_text",
]

_T = TypeVar("_T")

_MOST_SECONDS = 1e6  # functions that take time limits overflow at larger values
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Align columns: those in left at their left, all others at their right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def columns(
    rows: Sequence[_T],
    cells: Collection[tuple[str, Callable[[_T], str]]],
    left: Collection[int] = (0,),
) -> str:
    """A table of rows, from the title of each column and the function for its cells."""
    lines = [[cell(row) for _, cell in cells] for row in rows]
    return table([title for title, _ in cells], lines, left)


def time_text(nanoseconds: int | None) -> str:
    """Format a time with a unit that leaves one to four digits before the point: "1.23 ms"."""
    if nanoseconds is None:
        return "-"
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f} {unit}"
    return f"{nanoseconds} ns"


def significant(value: float, places: int) -> str:
    """Format a number with three significant digits, at most ``places`` after the point."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{round(value, digits):.{min(places, max(0, digits))}f}"


def size_text(nbytes: int) -> str:
    """Format a number of bytes with four digits: "64 KiB", "1.465 MiB", "1000 B"."""
    for unit in ("G", "M", "K"):
        if nbytes >= _UNITS[unit]:
            return f"{nbytes / _UNITS[unit]:.4g} {unit}iB"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Parse a number of bytes, with units that are powers of 1024: "4", "64K", "16MB", "1GiB".

    Raises:
        ValueError: text is not a size above 0.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)(I?B)?", text.strip().upper())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is not a size in bytes; write 4, 64K, 16MB")
    return int(match[1]) * _UNITS[match[2]]


def positive(text: str) -> int:
    """The type of an argument of a command that is an integer above 0."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def seconds(text: str) -> float:
    """The type of an argument of a command that is a time limit or duration in seconds."""
    if not 0 < (value := float(text)) <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most {_MOST_SECONDS:g}")
    return value


def list_of(kind: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """The type of an argument of a command that is a comma-separated list.

    Args:
        kind: parses one element; raises ValueError if it is invalid.
    """

    def parse(text: str) -> list[_T]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def one_of(choices: Collection[str]) -> Callable[[str], str]:
    """A parser that accepts only these texts, for list_of()."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse
