"""Types of command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import TypeVar

from pynccl.tools.text import parse_size

__all__ = ["positive", "size", "tuple_of"]

T = TypeVar("T")


def positive(text: str) -> int:
    """Parse an integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def size(text: str) -> int:
    """Parse a number of bytes: 4, 64K, 16M."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def tuple_of(
    convert: Callable[[str], T], known: Collection[str] = ()
) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of values separated by commas, each of them in known if that is not empty."""

    def convert_all(text: str) -> tuple[T, ...]:
        parts = text.split(",")
        for part in parts:
            if known and part not in known:
                raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(known)}")
        return tuple(map(convert, parts))

    return convert_all
