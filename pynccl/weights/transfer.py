"""Common parts of all transfers: units with their tensors, buckets, checksums.

A ring moves the bytes from the senders' buckets to the receivers: see
:mod:`pynccl.weights.broadcast_ring` and :mod:`pynccl.weights.shared_ring`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pynccl.weights.memory import Memory, Tensor
from pynccl.weights.plan import Segment, Step, Unit
from pynccl.weights.source import Source
from pynccl.weights.target import Target
from pynccl.weights.world import World

__all__ = [
    "Bindings",
    "Bound",
    "Progress",
    "Ring",
    "Sums",
    "digest_of",
    "digests",
    "nbytes_for",
    "pack",
    "pack_made",
    "sums_of",
    "unpack",
]

Sums = dict[int, int]  # checksums by the number of the unit
Progress = Callable[[int], object]  # called with the bytes of a completed step


class Ring(Protocol):
    """The buckets of a member, and their transfer.

    Attributes:
        world: the communicators.
        memory: of the session.
        nbytes: size of its buckets together.
        spare: a bucket that is unused between transfers.
    """

    world: World
    memory: Memory

    @property
    def nbytes(self) -> int: ...

    @property
    def spare(self) -> Tensor: ...

    def probe(self) -> float:
        """Measure bytes per second of broadcasts by each sender in turn; all members call it."""

    def close(self) -> None:
        """Free what the communicators still refer to."""

    def send(
        self, steps: Sequence[Step], source: Source, bindings: Bindings, progress: Progress
    ) -> Sums:
        """Send the steps of this sender.

        Args:
            steps: of this sender, in order.
            source: the tensors to send.
            bindings: those of the source.
            progress: called with the bytes of each step that was sent.

        Returns:
            The checksums of the units.

        Raises:
            NcclError: a communicator failed.
            ValueError, TypeError: the source does not match its layout.
        """

    def receive(
        self, steps: Sequence[Step], target: Target, bindings: Bindings, progress: Progress
    ) -> Sums:
        """Receive the units of steps for this receiver.

        Args:
            steps: of all senders, in order.
            target: the tensors to fill.
            bindings: those of the target.
            progress: called with the bytes of each step that has arrived.

        Returns:
            The checksums of the units as they are in the target, or as they arrived if the target
            has another dtype.

        Raises:
            NcclError: a communicator failed.
        """


@dataclass
class Bound:
    """The units of a step with their tensors: those that are copied unchanged, and the others."""

    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    raws: list[Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    is_lasting: bool = True  # it has no view of a tensor whose memory may be replaced
    others: list[tuple[Unit, int, Tensor]] = field(default_factory=list)


def _bound(
    units: Iterable[tuple[Unit, int]], view: Callable[[Unit], Tensor], memory: Memory
) -> Bound:
    bound = Bound()
    for unit, offset in units:
        tensor = view(unit)
        raw = memory.raw(tensor, unit.dtype)
        if raw is None:
            bound.others.append((unit, offset, tensor))
        else:
            bound.offsets.append(offset)
            bound.sizes.append(unit.nbytes)
            bound.raws.append(raw)
            bound.is_lasting &= raw is tensor
            bound.numbers.append(unit.number)
    return bound


class Viewed(Protocol):
    """A source or a target."""

    def view(self, unit: Unit) -> Tensor:
        """The tensor of a unit."""

    def holds_whole(self, unit: Unit) -> bool:
        """Whether it is a whole tensor, so that view() returns the same object each time."""


class Bindings:
    """The bound steps of recent sources or targets, cached if a step has only whole tensors.

    A part of a tensor is looked up each time, because the tensor's memory may have been replaced.
    """

    def __init__(self) -> None:
        self._known: list[tuple[object, dict[int, tuple[Step, Bound]]]] = []

    def bind(
        self,
        step: Step,
        receiver: int | None,
        tensors: object,
        of: Viewed,
        memory: Memory,
    ) -> Bound:
        known = next((bound for one, bound in self._known if one is tensors), None)
        if known is None:
            known = {}
            self._known = [*self._known[-1:], (tensors, known)]  # two, since targets alternate
        last, bound = known.get(id(step), (None, None))
        if last is not step or bound is None:
            units = [
                (unit, offset)
                for unit, offset in step.units
                if receiver is None or receiver in unit.receivers
            ]
            bound = _bound(units, of.view, memory)
            if step.is_planned and bound.is_lasting and all(of.holds_whole(u) for u, _ in units):
                known[id(step)] = step, bound
        return bound


def pack(memory: Memory, bucket: Tensor, bound: Bound, sums: Sums) -> None:
    """Fill a bucket and add the checksums of the units."""
    packed = memory.pack(bucket, bound.offsets, bound.sizes, bound.raws)
    sums.update(zip(bound.numbers, packed, strict=True))
    for unit, offset, tensor in bound.others:
        place = memory.typed(bucket, offset, unit.box.shape, unit.dtype)
        memory.assign(place, tensor)
        sums[unit.number] = memory.checksum(bucket[offset : offset + unit.nbytes])
    memory.synchronize()


def pack_made(memory: Memory, bucket: Tensor, step: Step, source: Source, sums: Sums) -> None:
    """Fill a bucket with tensors that are produced now, freeing each before the next."""
    for unit in step.units:
        pack(memory, bucket, _bound([unit], source.view, memory), sums)


def unpack(memory: Memory, bucket: Tensor, bound: Bound, sums: Sums) -> None:
    """Empty a bucket and add the checksums of the units."""
    unpacked = memory.unpack(bucket, bound.offsets, bound.sizes, bound.raws)
    sums.update(zip(bound.numbers, unpacked, strict=True))
    for unit, offset, tensor in bound.others:
        sums[unit.number] = memory.checksum(bucket[offset : offset + unit.nbytes])
        place = memory.typed(bucket, offset, unit.box.shape, unit.dtype)
        memory.assign(tensor, place)
    memory.synchronize()


def nbytes_for(step: Step, receiver: int | None) -> int:
    """The bytes of the units of a step for a receiver."""
    return sum(part.payload for part in step.segments if receiver in part.receivers)


def sums_of(steps: Iterable[Step], ring: Ring, source: Source, bindings: Bindings) -> Sums:
    """The checksums of units, without sending them."""
    memory, sums = ring.memory, Sums()
    source.begin()
    for step in steps:
        bound = bindings.bind(step, None, source, source, memory)
        if len(step.units) == len(bound.raws) == 1:
            sums[bound.numbers[0]] = memory.checksum(bound.raws[0])
        else:
            pack(memory, ring.spare, bound, sums)
    source.end()
    return sums


def digest_of(segment: Segment, sums: Sums) -> str:
    """One checksum over those of a segment's units."""
    values = array("Q", [sums[number] for number in segment.numbers])
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def digests(steps: Iterable[Step], sums: Sums) -> list[str]:
    """The digests of all segments, in the order of the steps."""
    return [digest_of(segment, sums) for step in steps for segment in step.segments]
