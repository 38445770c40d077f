"""The messages between the ranks and the benchmark's process, besides rows and answers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SOCKET", "Failed", "Ready", "Sample"]

SOCKET = "socket"  # in the folder of the run


@dataclass(frozen=True)
class Ready:
    """A rank is ready."""

    library: str
    rank: int
    version: str


@dataclass(frozen=True)
class Sample:
    """The order to make the current row's call so many times."""

    iterations: int
    warm: bool  # make it once before


@dataclass(frozen=True)
class Failed:
    """What ended a rank."""

    text: str
