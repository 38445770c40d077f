"""Tensors that share memory: identical memory and partial overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pynccl.weights.memory import Memory, Tensor

__all__ = ["Extent", "overlap", "tied"]

_WORK = 10_000  # steps to search for a shared element; usually few suffice


class Extent(NamedTuple):
    """The memory of a tensor's elements.

    Attributes:
        address: of the first byte.
        itemsize: bytes per element.
        shape: of the tensor.
        strides: in bytes.
    """

    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def __array_interface__(self) -> dict[str, object]:
        """The layout as NumPy reads it. It does not access the memory."""
        layout = {"shape": self.shape, "strides": self.strides, "typestr": f"|V{self.itemsize}"}
        return {"version": 3, "data": (self.address, True), **layout}

    @property
    def start(self) -> int:
        """The lowest address of an element."""
        return self.address + sum(min(span, 0) for span in self._spans())

    @property
    def stop(self) -> int:
        """The end of the element with the highest address."""
        return self.address + sum(max(span, 0) for span in self._spans()) + self.itemsize

    def _spans(self) -> Iterator[int]:
        return (stride * (n - 1) for n, stride in zip(self.shape, self.strides, strict=True))


def extent_of(tensor: Tensor, memory: Memory) -> Extent:
    """The extent of a tensor of the memory's library."""
    if memory.library == "numpy":
        address, size = int(tensor.__array_interface__["data"][0]), int(tensor.itemsize)
        return Extent(address, size, tensor.shape, tensor.strides)
    size = int(tensor.element_size())
    strides = tuple(stride * size for stride in tensor.stride())
    return Extent(int(tensor.data_ptr()), size, tuple(tensor.shape), strides)


def overlap(a: Extent, b: Extent) -> bool:
    """Whether two tensors share a byte; True if NumPy cannot decide within a short time.

    Raises:
        ImportError: NumPy is not installed.
    """
    if 0 in a.shape or 0 in b.shape or a.start >= b.stop or b.start >= a.stop:
        return False
    try:
        import numpy
    except ImportError:
        raise ImportError("into: NumPy is required to compare views of one tensor") from None
    try:
        return numpy.shares_memory(numpy.asarray(a), numpy.asarray(b), _WORK)  # type: ignore[arg-type]
    except RuntimeError:  # numpy.exceptions.TooHardError
        return True


def overlaps_itself(extent: Extent) -> bool:
    """Whether two indices have, or may have, the same address: the strides are not nested."""
    if 0 in extent.shape:
        return False
    reach = extent.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(extent.strides, extent.shape, strict=True)):
        if n > 1:
            if stride < reach:
                return True
            reach += stride * (n - 1)
    return False


def tied(
    tensors: Mapping[str, Tensor], kinds: Mapping[str, object], memory: Memory
) -> list[list[str]]:
    """Group the names of tensors that are the same memory and of the same kind.

    Args:
        tensors: by name.
        kinds: a further key that must be equal: the part of the whole tensor that each one is.
        memory: of the tensors.

    Raises:
        ValueError: a tensor overlaps itself, or partially overlaps another one.
    """
    extents = {name: extent_of(tensor, memory) for name, tensor in tensors.items()}
    groups: dict[tuple[Extent, object], list[str]] = {}
    for name, extent in extents.items():
        if overlaps_itself(extent):
            raise ValueError(
                f"into: {name} has several elements at the same address (shape {extent.shape}, "
                f"strides of {extent.strides} bytes); pass a tensor with memory of its own"
            )
        groups.setdefault((extent, kinds[name]), []).append(name)
    open_groups: list[tuple[Extent, str]] = []
    for (extent, _), names in sorted(groups.items(), key=lambda item: item[0][0].start):
        open_groups = [(other, name) for other, name in open_groups if other.stop > extent.start]
        for other, name in open_groups:
            if overlap(extent, other):
                raise ValueError(
                    f"into: {name} and {names[0]} overlap in memory but are not the same tensor; "
                    "omit one of them, or give it memory of its own"
                )
        if 0 not in extent.shape:
            open_groups.append((extent, names[0]))
    return [
        names for (extent, _), names in groups.items() if len(names) > 1 and 0 not in extent.shape
    ]
