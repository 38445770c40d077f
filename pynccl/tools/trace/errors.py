"""The error of everything that reads traces."""

from __future__ import annotations

__all__ = ["TraceError"]


class TraceError(ValueError):
    """A file is not a complete trace, or traces do not belong together."""
