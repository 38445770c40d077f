"""The exception for invalid recordings and arguments."""

from __future__ import annotations

__all__ = ["ReplayError"]


class ReplayError(ValueError):
    """Recordings that do not belong together or cannot be replayed, or an invalid argument."""
