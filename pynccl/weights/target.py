"""The target of a receiver: its tensors, and a copy of them that makes commits atomic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from pynccl.weights.dtypes import converts
from pynccl.weights.layout import Box, Layout
from pynccl.weights.memory import Memory, Tensor
from pynccl.weights.overlap import tied
from pynccl.weights.plan import Unit
from pynccl.weights.source import Given, Shard, Views

__all__ = ["Commit", "Target"]

Commit = Literal["swap", "copy", "in_place"]


class _State(NamedTuple):
    """The contents of tensors, replaced by one assignment: no interrupt leaves it half done."""

    tensors: dict[str, Tensor]
    version: int | None  # in all of them; None if they hold parts of several, or none
    layout: Layout


class Target(Views):
    """The tensors of a receiver.

    Args:
        memory: of the session.
        into: the tensors or shards to fill; None allocates them from the senders' metadata.
        commit: "copy" or "in_place"; "swap" without into.

    Raises:
        ValueError: a tensor is not writable, has no memory, or overlaps another one.

    Attributes:
        wanted: the layout to request; None is everything.
        staged: the tensors that a version is written to.
    """

    def __init__(
        self, memory: Memory, into: Mapping[str, Tensor | Shard] | None, commit: Commit
    ) -> None:
        self._memory = memory
        self._commit = commit
        self.wanted: Layout | None = None
        self.staged: dict[str, Tensor] = {}
        self._spare: dict[str, Tensor] = {}  # for the next version
        self.layout: Layout = {}
        self._state = _State({}, None, {})
        self._given: Given | None = None  # the tensors of into
        self._tied: list[list[str]] = []
        if into is not None:
            self._given = Given(into, memory)
            self.wanted = self.layout = self._given.layout
            tensors = self._given.tensors
            for name, tensor in tensors.items():
                if not getattr(getattr(tensor, "flags", None), "writeable", True):
                    raise ValueError(f"into: {name} is a read-only array")
            self._state = _State(tensors, None, self.layout)
            self._tied = tied(tensors, self.layout, memory)

    @property
    def identity(self) -> object:
        return self.staged

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the committed version; with "in_place", those that are written to."""
        return self._state.tensors

    @property
    def version(self) -> int | None:
        """The version in the tensors; None if they hold parts of several, or none."""
        return self._state.version

    def begin(self, layout: Layout) -> None:
        """Begin receiving a version, of whole tensors of this layout.

        Raises:
            ValueError: the memory of a tensor of into was freed, or its shape has changed.
        """
        self._check()
        if self.wanted is None and layout != self.layout:
            self.layout, self._spare = layout, {}
        state = self._state
        if self._commit == "in_place":
            self._state = state._replace(version=None)
            if self.wanted is None and state.layout != self.layout:
                self._state = _State(self._new(), None, self.layout)
            self.staged = self._state.tensors
        else:
            if self._spare is state.tensors:  # a commit was interrupted after the swap
                self._spare = {}
            self._spare = self._spare or self._new()
            self.staged = self._spare

    def tensor(self, name: str) -> Tensor:
        return self.staged[name]

    def check_tied(self, units: Iterable[Unit], sums: Mapping[int, int]) -> None:
        """Check that tensors of into that share their memory received the same values.

        Args:
            units: all units of the plan for this receiver.
            sums: their checksums.

        Raises:
            ValueError: the values differ.
        """
        if not self._tied:
            return
        parts: dict[str, dict[tuple[str, Box], int]] = {}
        names = {name for group in self._tied for name in group}
        for unit in units:
            if unit.name in names:
                parts.setdefault(unit.name, {})[unit.dtype, unit.box] = sums[unit.number]
        for first, *others in self._tied:
            for other in others:
                if parts.get(first) != parts.get(other):
                    raise ValueError(
                        f"into: {first} and {other} are the same tensor, but the senders have "
                        "different values for them; omit one of them, or give it memory of its own"
                    )

    def commit(self, version: int) -> None:
        """Commit the received data as a version.

        An exception leaves the last version, or none: ``version`` is then None.

        Raises:
            ValueError: the memory of a tensor of into was freed, or its shape has changed.
        """
        state = self._state
        if self._commit == "swap":
            self._state = _State(self.staged, version, self.layout)
            self._spare = state.tensors if state.layout == self.layout else {}
            return
        if self._commit == "copy":
            self._check()
            self._state = state._replace(version=None)
            for name, tensor in self.staged.items():
                self._memory.assign(state.tensors[name], tensor)
            self._memory.synchronize()
        self._state = state._replace(version=version)

    def _check(self) -> None:
        """Raise ValueError if a tensor of into has changed since the receiver was created."""
        if self._given is None:
            return
        self._given.check_storage()
        if not self._given.has_changed():
            return
        for name, tensor in self._given.tensors.items():
            part = self.layout[name]
            dtype, shape = self._memory.dtype_of(tensor), tuple(tensor.shape)
            if shape != part.box.shape or not converts(part.dtype, dtype):
                raise ValueError(
                    f"into: {name} is {dtype} of shape {shape} now; it was {part.dtype} of shape "
                    f"{part.box.shape} when the receiver was created"
                )
        # Another identity: bind() must not use the memory as it was, which may have been larger.
        self._state = self._state._replace(tensors=dict(self._state.tensors))
        self._given.renew()

    def _new(self) -> dict[str, Tensor]:
        return {
            name: self._memory.empty(part.box.shape, part.dtype)
            for name, part in self.layout.items()
        }
