"""Layouts: boxes of tensors, the parts of members, and their metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pynccl.weights.dtypes import size_of

__all__ = ["MOST_DIMENSIONS", "Box", "Layout", "Part", "check_part", "split", "whole"]

_LONGEST_NAME = 1 << 12  # characters
MOST_DIMENSIONS = 64


class Box(NamedTuple):
    """A slice of a tensor in every dimension: start inclusive, stop exclusive."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def common(self, other: Box) -> Box | None:
        """The intersection of two boxes; None if it is empty."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        box = Box(start, stop)
        return box if all(a < b for a, b in zip(start, stop, strict=True)) else None

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        """The index of this box in a tensor of the outer box."""
        return tuple(
            slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, outer.start, strict=True)
        )


class Part(NamedTuple):
    """A member's part of a tensor."""

    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    box: Box


Layout = Mapping[str, Part]  # by the name of the tensor


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


def split(box: Box, itemsize: int, limit: int) -> Iterator[Box]:
    """Split a box into boxes of at most limit bytes, which are contiguous if the box is."""
    if box.size * itemsize <= limit:
        yield box
        return
    axis = next(i for i, n in enumerate(box.shape) if n > 1)
    row = box.size // box.shape[axis] * itemsize
    rows = max(1, limit // row)
    for start in range(box.start[axis], box.stop[axis], rows):
        stop = min(start + rows, box.stop[axis])
        slab = Box(
            (*box.start[:axis], start, *box.start[axis + 1 :]),
            (*box.stop[:axis], stop, *box.stop[axis + 1 :]),
        )
        yield from split(slab, itemsize, limit)


def check_part(name: str, part: Part) -> None:
    """Check that a part can be sent in a message.

    Raises:
        TypeError, ValueError: the name is not a string or is too long, the box exceeds its tensor,
            the dtype is unknown, or there are too many dimensions.
    """
    if not isinstance(name, str):
        raise TypeError(f"{name!r:.60}: the name of a tensor must be a str")
    if len(name) > _LONGEST_NAME:
        raise ValueError(
            f"{name[:60]}...: the name has {len(name)} characters, more than {_LONGEST_NAME}"
        )
    if len(part.shape) > MOST_DIMENSIONS:
        raise ValueError(f"{name}: {len(part.shape)} dimensions, more than {MOST_DIMENSIONS}")
    try:
        size_of(part.dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    box, shape = part.box, part.shape
    inside = len(box.start) == len(box.stop) == len(shape) and all(
        0 <= a <= b <= n for a, b, n in zip(box.start, box.stop, shape, strict=True)
    )
    if not inside:
        raise ValueError(f"{name}: {box.start} to {box.stop} is not within shape {shape}")
