"""The plan of a transfer: which bytes each sender sends to which receivers, and in which order.

It is a function of the layouts only, so every member computes the same plan. The tensors have an
order. Their parts are split into units of at most a bucket. A sender's small units are packed in
buckets; a large one is a separate step. A step is complete before a later one needs it:
docs/weights.md explains why this order cannot deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pynccl.weights.dtypes import converts, size_of
from pynccl.weights.layout import Box, Layout, Part, split, whole

__all__ = ["Segment", "Step", "Unit", "make_plan"]

_ALIGNMENT = 64  # bytes, of a unit in a bucket


class Unit(NamedTuple):
    """A part of a tensor that is sent at once and has a checksum."""

    number: int  # index in the plan
    name: str  # of the tensor
    dtype: str  # the dtype in which it is sent
    box: Box  # the part
    sender: int
    receivers: tuple[int, ...]  # the receivers that get it
    nbytes: int


class Segment(NamedTuple):
    """The bytes of a step that go to the same receivers."""

    receivers: tuple[int, ...]
    offset: int  # in the bucket
    nbytes: int  # including the padding between units
    payload: int  # bytes of its units
    numbers: tuple[int, ...]  # of its units


@dataclass
class Step:
    """The units that a sender sends at once."""

    sender: int
    units: list[tuple[Unit, int]] = field(default_factory=list)  # with offsets in the bucket
    segments: list[Segment] = field(default_factory=list)
    nbytes: int = 0  # in the bucket
    bounds: list[tuple[object, Any]] = field(default_factory=list)  # a cache of transfer.bind()

    def segments_for(self, receiver: int | None) -> list[Segment]:
        """The segments for a receiver; None is all."""
        return [one for one in self.segments if receiver is None or receiver in one.receivers]

    def payload(self, receiver: int | None = None) -> int:
        """The bytes of the units for a receiver; None is all."""
        return sum(segment.payload for segment in self.segments_for(receiver))


def make_plan(
    senders: Sequence[Layout],
    receivers: Sequence[Layout | None],
    order: Sequence[str] | None,
    bucket_bytes: int,
    direct_bytes: int,
) -> list[Step]:
    """Compute the plan of a version.

    Args:
        senders: the layout of each sender.
        receivers: the layout that each receiver wants; None is everything.
        order: order of the tensors; None puts small ones after large ones, which gives fewer and
            larger buckets.
        bucket_bytes: size of a bucket.
        direct_bytes: units of at least this size are separate steps.

    Raises:
        ValueError: the layouts do not match; the text names the tensor.
    """
    units = _units(senders, receivers, order, bucket_bytes)
    if order is None:
        units.sort(key=lambda unit: unit.nbytes < direct_bytes)
    units = [unit._replace(number=number) for number, unit in enumerate(units)]
    return _make_steps(units, bucket_bytes, direct_bytes)


def _units(
    senders: Sequence[Layout],
    receivers: Sequence[Layout | None],
    order: Sequence[str] | None,
    bucket_bytes: int,
) -> list[Unit]:
    """The units of a plan, in the order of the tensors, without numbers."""
    holders: dict[str, list[tuple[int, Part]]] = defaultdict(list)
    for name in order or ():
        holders[name] = []
    for sender, layout in enumerate(senders):
        for name, part in layout.items():
            holders[name].append((sender, part))
    for wanted in receivers:
        if missing := [name for name in wanted or () if name not in holders]:
            raise ValueError(f"{missing[0]}: a receiver requests it, but no sender has it")
    load = [0] * len(senders)
    units: list[Unit] = []
    for name, parts in holders.items():
        if not parts:
            raise ValueError(f"{name}: it is in the metadata, but no sender has it")
        shape, dtype = parts[0][1].shape, parts[0][1].dtype
        for _, part in parts:
            if (part.shape, part.dtype) != (shape, dtype):
                raise ValueError(
                    f"{name}: it is {dtype} of shape {shape} on a sender, and {part.dtype} of "
                    f"shape {part.shape} on another"
                )
        targets, sent = _targets(name, parts[0][1], receivers)
        itemsize = size_of(sent)
        for sender, box in _pieces(name, shape, parts, load):
            load[sender] += box.size * itemsize
            for target_box, numbers in targets.items():
                common = box.common(target_box)
                if common is None:
                    continue
                units += (
                    Unit(0, name, sent, cut, sender, tuple(numbers), cut.size * itemsize)
                    for cut in split(common, itemsize, bucket_bytes)
                )
    return units


def _targets(
    name: str, part: Part, receivers: Sequence[Layout | None]
) -> tuple[dict[Box, list[int]], str]:
    """The receivers of each part of a tensor, and the dtype in which it is sent."""
    dtype, shape, _ = part
    targets: dict[Box, list[int]] = defaultdict(list)
    kinds = set()
    for receiver, wanted in enumerate(receivers):
        target = Part(dtype, shape, whole(shape)) if wanted is None else wanted.get(name)
        if target is None:
            continue
        if target.shape != shape:
            raise ValueError(
                f"{name}: its shape is {shape} on the senders and {target.shape} on a receiver"
            )
        if not converts(dtype, target.dtype):
            raise ValueError(
                f"{name}: {dtype} of the senders would lose values as {target.dtype} of a "
                f"receiver; receive it as {dtype}, or convert it before it is sent"
            )
        targets[target.box].append(receiver)
        kinds.add(target.dtype)
    # If all receivers round to one dtype, the values are rounded before they are sent.
    narrow = kinds.pop() if len(kinds) == 1 else dtype
    return targets, narrow if size_of(narrow) < size_of(dtype) else dtype


def _pieces(
    name: str, shape: tuple[int, ...], parts: list[tuple[int, Part]], load: list[int]
) -> list[tuple[int, Box]]:
    """The sender of each part; among equals, the one with the least to send."""
    holders: dict[Box, list[int]] = defaultdict(list)
    for sender, part in parts:
        if part.box.size:
            holders[part.box].append(sender)
    boxes = sorted(holders)
    if sum(box.size for box in boxes) != whole(shape).size or any(
        a.common(b) for i, a in enumerate(boxes) for b in boxes[:i]
    ):
        held = ", ".join(f"{list(box.start)} to {list(box.stop)}" for box in boxes) or "nothing"
        raise ValueError(
            f"{name}: the senders' parts must cover shape {shape} exactly once, and are {held}"
        )
    return [(min(holders[box], key=lambda sender: load[sender]), box) for box in boxes]


def _make_steps(units: Iterable[Unit], bucket_bytes: int, direct_bytes: int) -> list[Step]:
    """Pack units in steps, in their order."""
    steps: list[Step] = []
    filled: dict[int, tuple[list[Unit], int]] = {}  # by sender: the open bucket and its size

    def close(sender: int) -> None:
        if sender in filled:
            steps.append(_arranged(sender, filled.pop(sender)[0]))

    for unit in units:
        sender, size = unit.sender, _aligned(unit.nbytes)
        if unit.nbytes >= direct_bytes:
            close(sender)
            steps.append(_arranged(sender, [unit]))
            continue
        if sender in filled and filled[sender][1] + size > bucket_bytes:
            close(sender)
        bucket, total = filled.get(sender, ([], 0))
        bucket.append(unit)
        filled[sender] = bucket, total + size
    for sender in sorted(filled):
        close(sender)
    return steps


def _arranged(sender: int, units: list[Unit]) -> Step:
    """Build a step, placing units for the same receivers side by side."""
    by_receivers: dict[tuple[int, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        by_receivers[unit.receivers].append(unit)
    step = Step(sender)
    for receivers, together in by_receivers.items():
        start = end = step.nbytes
        for unit in together:
            step.units.append((unit, step.nbytes))
            end = step.nbytes + unit.nbytes
            step.nbytes += _aligned(unit.nbytes)
        payload = sum(unit.nbytes for unit in together)
        numbers = tuple(unit.number for unit in together)
        step.segments.append(Segment(receivers, start, end - start, payload, numbers))
    step.units.sort()
    return step


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
