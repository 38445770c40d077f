"""The report on a transfer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """The summary of a transferred version.

    Attributes:
        version: its number.
        nbytes: bytes that this member sent or received, without repetitions.
        seconds: from the start of the transfer, when all members had joined, to the commit.
        receivers: names of the receivers that committed the version; on a receiver, of those that
            were asked to.
        lost: names of receivers that died, did not respond or had a local error, and were dropped.
    """

    version: int
    nbytes: int
    seconds: float
    receivers: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        text = (
            f"version {self.version}: {self.nbytes / 1e6:.1f} MB to {len(self.receivers)} "
            f"receivers in {self.seconds * 1e3:.1f} ms, {self.bandwidth / 1e9:.2f} GB/s"
        )
        if self.lost:
            text += f"; lost: {', '.join(self.lost)}"
        return text
