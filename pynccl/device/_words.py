"""The layout of the signal memory of kernels."""

from __future__ import annotations

__all__ = ["barrier_words"]


def barrier_words(nranks: int, barriers: int = 1) -> int:
    """Return the int64 words of each rank's signal memory that :func:`barrier` requires.

    Args:
        nranks: the number of ranks.
        barriers: the number of barriers, one per program that uses one.

    Returns:
        The number of 8-byte words, which must be zero initially.

    Raises:
        ValueError: an argument is not positive.
    """
    for name, value in (("nranks", nranks), ("barriers", barriers)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not positive")
    return barriers * (nranks + 1)
