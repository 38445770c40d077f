"""Where a receiver puts a version: its tensors, and a copy of them that makes commits atomic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pynccl.weights.layout import Layout
from pynccl.weights.memory import Memory, Tensor
from pynccl.weights.plan import Unit
from pynccl.weights.source import Shard, layout_of, local

__all__ = ["Commit", "Target"]

Commit = Literal["swap", "copy", "in_place"]


class Target:
    """The tensors of a receiver.

    Args:
        memory: of the session.
        into: the tensors or shards to fill; None makes them by the senders' metadata.
        commit: "copy" or "in_place"; "swap" without into.

    Raises:
        ValueError: an array cannot be written to.

    Attributes:
        wanted: the layout to ask for; None is everything.
        tensors: those of the version that is committed; with "in_place", those that are written.
        is_whole: whether they are the tensors of one version.
        staged: those that a version is written to.
    """

    def __init__(
        self, memory: Memory, into: Mapping[str, Tensor | Shard] | None, commit: Commit
    ) -> None:
        self._memory = memory
        self._commit = commit
        self.wanted: Layout | None = None
        self.tensors: dict[str, Tensor] = {}
        self.is_whole = False
        self.staged: dict[str, Tensor] = {}
        self._spare: dict[str, Tensor] = {}  # to write the next version to
        self._layout: Layout = {}
        self._committed: Layout = {}  # of the tensors
        if into is not None:
            self.wanted = self._layout = layout_of(into, memory)
            self.tensors = {name: memory.wrap(local(value)) for name, value in into.items()}
            for name, tensor in self.tensors.items():
                if not getattr(getattr(tensor, "flags", None), "writeable", True):
                    raise ValueError(f"into: {name} is a read-only array")

    def begin(self, layout: Layout) -> None:
        """A version is received from now on.

        Args:
            layout: of all tensors, whole.
        """
        if self.wanted is None and layout != self._layout:
            self._layout, self._spare = layout, {}
        if self._commit == "in_place":
            self.is_whole = False
            if self.wanted is None and self._committed != self._layout:
                self.tensors, self._committed = self._new(), self._layout
            self.staged = self.tensors
        else:
            self._spare = self._spare or self._new()
            self.staged = self._spare

    def view(self, unit: Unit) -> Tensor:
        """The place of a unit."""
        tensor, box = self.staged[unit.name], self._layout[unit.name].box
        return tensor if unit.box == box else tensor[unit.box.slices_in(box)]

    def holds_whole(self, unit: Unit) -> bool:
        """Whether view() returns a whole tensor."""
        return unit.box == self._layout[unit.name].box

    def commit(self) -> None:
        """What was received is the version now."""
        if self._commit == "swap":
            same = self._committed == self._layout
            self.tensors, self._spare = self.staged, self.tensors if same else {}
            self._committed = self._layout
        elif self._commit == "copy":
            for name, tensor in self.staged.items():
                self._memory.assign(self.tensors[name], tensor)
            self._memory.synchronize()
        self.is_whole = True

    def _new(self) -> dict[str, Tensor]:
        return {
            name: self._memory.empty(part.box.shape, part.dtype)
            for name, part in self._layout.items()
        }
