"""The exception for invalid traces."""

from __future__ import annotations

__all__ = ["TraceError"]


class TraceError(ValueError):
    """A file is not a complete trace, or traces do not belong together."""
