"""A finding of the doctor: one fact, its severity, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

__all__ = ["LEVELS", "Finding", "Level"]

# "ok": as expected. "note": worth knowing. "problem": a requested feature cannot work.
Level: TypeAlias = Literal["ok", "note", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Finding:
    """One fact about the machine.

    Attributes:
        area: its subject, such as "provider cuda"; a heading of the output.
        level: "ok", "note" or "problem".
        text: the fact, a sentence without a full stop.
        advice: what to do; "" if nothing needs to be done.
    """

    area: str
    level: Level
    text: str
    advice: str = ""
