"""What the doctor finds: one fact, how bad it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Finding", "Level"]

# "ok": as it should be. "note": worth knowing. "problem": something that was asked for cannot work.
Level: TypeAlias = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One fact about the machine.

    Attributes:
        area: what it is about, "provider cuda"; the headings of the output.
        level: "ok", "note" or "problem".
        text: the fact, a sentence without a full stop.
        advice: what to do; "" where there is nothing to do.
    """

    area: str
    level: Level
    text: str
    advice: str = ""
