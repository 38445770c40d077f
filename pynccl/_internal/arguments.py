"""Checks of arguments whose errors name the argument and the value."""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = ["integer", "wrong_type"]


def integer(name: str, value: SupportsIndex) -> int:
    """Return an integer argument as an int. Raises TypeError."""
    try:
        return operator.index(value)
    except TypeError:
        raise wrong_type(name, "an integer", value) from None


def wrong_type(name: str, expected: str, value: object) -> TypeError:
    """Return the error of an argument of another type than the expected ones."""
    return TypeError(f"{name}: expected {expected}, got {value!r} ({type(value).__name__})")
