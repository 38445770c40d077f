"""Units with their tensors, buckets and checksums, without the transfer itself."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from pynccl.weights.memory import Memory, Tensor
from pynccl.weights.plan import Segment, Step, Unit
from pynccl.weights.source import Source, Views

__all__ = ["Sums", "bind", "digest_of", "digests", "fill", "unpack"]

Sums = dict[int, int]  # checksums by the number of the unit


@dataclass
class Bound:
    """The units of a step with their tensors: those that are copied unchanged, and the others."""

    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    raws: list[Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    is_lasting: bool = True  # it has no view of a tensor whose memory may be replaced
    others: list[tuple[Unit, int, Tensor]] = field(default_factory=list)


def _bound(units: Iterable[tuple[Unit, int]], views: Views, memory: Memory) -> Bound:
    bound = Bound()
    for unit, offset in units:
        tensor = views.view(unit)
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


def bind(step: Step, receiver: int | None, views: Views, memory: Memory) -> Bound:
    """The units of a step for a receiver, or all of them, with their tensors.

    The result is cached if they are whole tensors. A part of a tensor is looked up each time,
    because the tensor's memory may have been replaced.
    """
    bound: Bound
    for identity, bound in step.bounds:
        if identity is views.identity:
            return bound
    units = [one for one in step.units if receiver is None or receiver in one[0].receivers]
    bound = _bound(units, views, memory)
    if bound.is_lasting and all(views.is_whole(unit) for unit, _ in units):
        step.bounds = [*step.bounds[-1:], (views.identity, bound)]  # two, since targets alternate
    return bound


def fill(memory: Memory, bucket: Tensor, step: Step, source: Source, sums: Sums) -> None:
    """Fill a bucket and add the checksums of the units."""
    if source.is_lazy:  # each tensor is freed before the next one is produced
        for unit in step.units:
            _pack(memory, bucket, _bound([unit], source, memory), sums)
    else:
        _pack(memory, bucket, bind(step, None, source, memory), sums)


def _pack(memory: Memory, bucket: Tensor, bound: Bound, sums: Sums) -> None:
    packed = memory.pack(bucket, bound.offsets, bound.sizes, bound.raws)
    sums.update(zip(bound.numbers, packed, strict=True))
    for unit, offset, tensor in bound.others:
        place = memory.typed(bucket, offset, unit.box.shape, unit.dtype)
        memory.assign(place, tensor)
        sums[unit.number] = memory.checksum(bucket[offset : offset + unit.nbytes])
    memory.synchronize()


def unpack(memory: Memory, bucket: Tensor, bound: Bound, sums: Sums) -> None:
    """Empty a bucket and add the checksums of the units."""
    unpacked = memory.unpack(bucket, bound.offsets, bound.sizes, bound.raws)
    sums.update(zip(bound.numbers, unpacked, strict=True))
    for unit, offset, tensor in bound.others:
        sums[unit.number] = memory.checksum(bucket[offset : offset + unit.nbytes])
        place = memory.typed(bucket, offset, unit.box.shape, unit.dtype)
        memory.assign(tensor, place)
    memory.synchronize()


def digest_of(segment: Segment, sums: Sums) -> str:
    """One checksum over those of a segment's units."""
    values = array("Q", [sums[number] for number in segment.numbers])
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def digests(steps: Iterable[Step], sums: Sums) -> list[str]:
    """The digests of all segments, in the order of the steps."""
    return [digest_of(segment, sums) for step in steps for segment in step.segments]
