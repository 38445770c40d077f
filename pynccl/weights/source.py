"""The source of a sender: tensors by name, or functions that produce them one at a time."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

from pynccl.weights.errors import WeightsError
from pynccl.weights.layout import Box, Layout, Part, check_part
from pynccl.weights.memory import Memory, Tensor, check_storage
from pynccl.weights.plan import Unit

__all__ = [
    "Gather",
    "Gathered",
    "Given",
    "Held",
    "Metadata",
    "Shard",
    "Source",
    "Sources",
    "Spec",
    "Views",
    "layout_of",
    "local",
]


class Spec(NamedTuple):
    """The metadata of a tensor that does not exist yet.

    Attributes:
        dtype: its name, such as "bfloat16".
        shape: of the whole tensor.
        start: start of this member's part; None is the whole tensor.
        extent: shape of that part; None extends to the end.
    """

    dtype: str
    shape: tuple[int, ...]
    start: tuple[int, ...] | None = None
    extent: tuple[int, ...] | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        """The metadata of a torch tensor or a NumPy array of this dtype and shape."""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


class Shard(NamedTuple):
    """A tensor that is a part of a larger one.

    Attributes:
        tensor: the part.
        shape: of the whole tensor.
        start: start of the part in it, for each dimension.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]


Metadata: TypeAlias = "Mapping[str, Spec | None]"
Gather = Callable[[], Iterable[tuple[str, Tensor]]]
Sources: TypeAlias = "Mapping[str, Tensor | Shard] | Gather"


def local(value: Tensor | Shard) -> Tensor:
    """The tensor in the memory of this process."""
    if isinstance(value, Shard):
        return value.tensor
    dtensor = sys.modules.get("torch.distributed.tensor")
    if dtensor is not None and isinstance(value, dtensor.DTensor):
        return value.to_local()
    return value


def _integers(name: str, attribute: str, values: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Check the values of an attribute of a Shard or a Spec, which may be NumPy integers."""
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise TypeError(f"{name}: {attribute}: expected integers, got {values!r}") from None


def _part(
    name: str,
    dtype: str,
    shape: Iterable[SupportsIndex],
    start: Iterable[SupportsIndex] | None,
    extent: Iterable[SupportsIndex] | None,
) -> Part:
    """The part of a tensor from a start, or the beginning, of an extent, or to the end."""
    shape = _integers(name, "shape", shape)
    start = (0,) * len(shape) if start is None else _integers(name, "start", start)
    if extent is None:
        extent = tuple(n - a for n, a in zip(shape, start))  # noqa: B905 - compared below
    extent = _integers(name, "extent", extent)
    if not len(shape) == len(start) == len(extent):
        raise ValueError(
            f"{name}: start is {start} and extent is {extent} in a shape of {len(shape)} dimensions"
        )
    part = Part(dtype, shape, Box(start, tuple(map(operator.add, start, extent))))
    check_part(name, part)
    return part


def layout_of(values: Mapping[str, Tensor | Shard], memory: Memory) -> dict[str, Part]:
    """The metadata of tensors, shards, and the local shards of DTensors."""
    layout = {}
    for name, value in values.items():
        tensor = memory.wrap(local(value))
        extent = tuple(tensor.shape)
        shape, start = extent, None
        if isinstance(value, Shard):
            shape, start = value.shape, value.start
        elif tensor is not value and hasattr(value, "placements"):
            shape = tuple(value.shape)
            start = _start_of(name, value) if tensor.numel() else None
        layout[name] = _part(name, memory.dtype_of(tensor), shape, start, extent)
    return layout


def _start_of(name: str, dtensor: Any) -> tuple[int, ...]:  # noqa: ANN401
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as locate

    if any(type(placement).__name__ == "_StridedShard" for placement in dtensor.placements):
        raise ValueError(f"{name}: a shard that is not one slice cannot be sent")
    return locate(tuple(dtensor.shape), dtensor.device_mesh, dtensor.placements)[1]


def layout_of_specs(metadata: Metadata) -> dict[str, Part]:
    """The layout that metadata describes."""
    return {name: _part(name, *spec) for name, spec in metadata.items() if spec is not None}


class Given:
    """Tensors of the user, whose memory, dtype, shape and strides may change between versions.

    Raises:
        ValueError: a tensor has no memory.
    """

    def __init__(self, values: Mapping[str, Tensor | Shard], memory: Memory) -> None:
        self._local = {name: local(value) for name, value in values.items()}
        self._storages: list[int] = []
        self.check_storage()
        self.layout = layout_of(values, memory)
        self.tensors = {name: memory.wrap(tensor) for name, tensor in self._local.items()}
        self._kind_of = memory.kind_of
        self._kinds = self._new_kinds()

    def check_storage(self) -> None:
        """Raise ValueError if the memory of a tensor was freed."""
        self._storages = check_storage(self._local, self._storages)

    def has_changed(self) -> bool:
        """Whether a tensor differs in more than its address, for example by module.half()."""
        return self._new_kinds() != self._kinds

    def renew(self) -> None:
        """Accept the changes."""
        self._kinds = self._new_kinds()

    def _new_kinds(self) -> list[object]:
        return list(map(self._kind_of, self.tensors.values()))


class Views:
    """The tensors of a source or a target, of which units are parts."""

    layout: Layout

    @property
    def identity(self) -> object:
        """Another object if view() returns parts of other tensors."""
        return self

    def tensor(self, name: str) -> Tensor:
        """A tensor by its name."""
        raise NotImplementedError

    def view(self, unit: Unit) -> Tensor:
        """The part of a tensor that is a unit."""
        tensor, box = self.tensor(unit.name), self.layout[unit.name].box
        return tensor if unit.box == box else tensor[unit.box.slices_in(box)]

    def is_whole(self, unit: Unit) -> bool:
        """Whether view() returns the tensor itself."""
        return unit.box == self.layout[unit.name].box


class Source(Views):
    """The tensors of a sender for one version.

    If tensors are produced during the transfer, the order lists those of all senders.
    """

    order: list[str] | None = None

    @property
    def is_lazy(self) -> bool:
        """Whether tensors are produced during the transfer."""
        return self.order is not None

    def begin(self) -> None:
        """Begin a transfer, from the first unit on.

        Raises:
            WeightsError: the tensors cannot be produced again.
        """

    def end(self) -> None:
        """End a transfer: all units were sent, or this member sends none of the remaining ones."""


class Held(Source):
    """Existing tensors."""

    def __init__(self, values: Mapping[str, Tensor | Shard], memory: Memory) -> None:
        self._values = dict(values)
        self._given = Given(values, memory)
        self.layout = self._given.layout
        # A DTensor may return another local tensor the next time.
        self._is_lasting = all(
            isinstance(value, Shard) or self._given.tensors[name] is value
            for name, value in values.items()
        )

    def is_for(self, values: Mapping[str, Tensor | Shard]) -> bool:
        """Whether it can be used for these tensors again: they are the same objects.

        Raises:
            ValueError: the memory of a tensor was freed.
        """
        if not self._is_lasting or list(values) != list(self._values):
            return False
        if not all(map(operator.is_, values.values(), self._values.values())):
            return False
        if self._given.has_changed():
            return False
        self._given.check_storage()
        return True

    def tensor(self, name: str) -> Tensor:
        return self._given.tensors[name]


class Gathered(Source):
    """Tensors that are produced one at a time.

    Args:
        gather: called for each attempt to transfer the version; yields names and tensors, in the
            order of the metadata. Those that other members send are skipped.
        metadata: of all tensors; None for those that other members send.
        memory: of the session.
    """

    def __init__(self, gather: Gather, metadata: Metadata, memory: Memory) -> None:
        self.layout = layout_of_specs(metadata)
        self.order = list(metadata)
        self._gather = gather
        self._memory = memory
        self._items: Iterator[tuple[str, Tensor]] = iter(())
        self._name = ""
        self._tensor: Any = None

    def begin(self) -> None:
        items = iter(self._gather())
        if items is self._items:
            raise WeightsError(
                "tensors: the function returned the same iterator as for the previous attempt, "
                "which cannot start again; pass a function that creates an iterator in each call, "
                "or a list of the tensors"
            )
        self._items = items
        self._name, self._tensor = "", None

    def tensor(self, name: str) -> Tensor:
        while self._name != name:
            self._advance(name)
        return self._tensor

    def end(self) -> None:
        # Other members may gather together with this one until the end.
        for _ in self._items:
            pass
        self._name, self._tensor = "", None

    def _advance(self, wanted: str) -> None:
        self._tensor = None  # freed before the next one is produced
        try:
            self._name, value = next(self._items)
        except StopIteration:
            hint = "its order must match the metadata"
            if not self._name:
                hint = "it produced nothing; a generator can be used for one version only"
            raise ValueError(f"tensors: the iterator ended before {wanted!r}; {hint}") from None
        if self._name not in self.layout:
            return
        tensor = local(value)
        check_storage({self._name: tensor}, [])
        self._tensor = self._memory.wrap(tensor)
        part = self.layout[self._name]
        dtype, shape = self._memory.dtype_of(self._tensor), tuple(self._tensor.shape)
        if (dtype, shape) != (part.dtype, part.box.shape):
            raise ValueError(
                f"{self._name}: it is {dtype} of shape {shape}, but its metadata says {part.dtype} "
                f"of shape {part.box.shape}"
            )
