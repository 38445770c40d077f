"""The errors of a session."""

from __future__ import annotations

__all__ = ["ChecksumError", "PeerLostError", "SessionClosedError", "WeightsError"]


class WeightsError(RuntimeError):
    """A version was not transferred; the receivers keep the last one."""


class PeerLostError(WeightsError):
    """A member without which the session cannot continue has died or does not answer.

    Attributes:
        names: of the members that are lost.
    """

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class ChecksumError(WeightsError):
    """Tensors arrived with other bits than were sent, also when they were sent again.

    Attributes:
        names: of the tensors.
    """

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class SessionClosedError(WeightsError):
    """The sender has closed the session."""
