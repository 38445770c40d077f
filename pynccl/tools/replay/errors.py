"""The error of everything that reads recordings for a replay."""

from __future__ import annotations

__all__ = ["ReplayError"]


class ReplayError(ValueError):
    """Recordings that cannot be replayed: they do not belong together, or an argument is wrong."""
