"""Exceptions of a session."""

from __future__ import annotations

__all__ = ["ChecksumError", "PeerLostError", "SessionClosedError", "WeightsError"]


class WeightsError(RuntimeError):
    """A version was not transferred; the receivers keep the previous one.

    Attributes:
        names: names of the lost members, or of the tensors with wrong checksums.
    """

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class PeerLostError(WeightsError):
    """A member that the session needs has died or does not respond."""


class ChecksumError(WeightsError):
    """Tensors arrived with different bits than were sent, even after several attempts."""


class SessionClosedError(WeightsError):
    """The sender has closed the session."""
