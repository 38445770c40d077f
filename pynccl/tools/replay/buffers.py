"""The buffers of a program: their layout in memory, and the order of their uses."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pynccl.tools.replay.program import Op, Step

__all__ = ["Accesses", "Layout", "order"]

_ALIGNMENT = 64  # bytes; for memory that did not overlap with other memory


class Layout:
    """Offsets of recorded buffers in one arena.

    Buffers that overlap, directly or through others, keep their order. If the scale is less than
    one, buffers that were disjoint remain disjoint.

    Args:
        buffers: (address, recorded bytes, bytes in the replay, alignment in the replay) of each.
        scale: factor for recorded distances.
    """

    def __init__(self, buffers: Iterable[tuple[int, int, int, int]], scale: float) -> None:
        # For each address, the largest buffer.
        largest: dict[int, tuple[int, int, int]] = {}
        for address, size, scaled, alignment in buffers:
            old = largest.get(address, (0, 0, 1))
            largest[address] = (max(old[0], size), max(old[1], scaled), max(old[2], alignment))
        self._starts: dict[int, int] = {}
        self.nbytes = 0
        island_end = -1  # of the recording
        origin = base = 0  # the island's start in the recording, and in the arena
        ended = 0  # the arena offset behind the buffers that have ended in the recording
        running: list[tuple[int, int]] = []  # (recorded end, end in the arena)
        previous = 0
        for address, (size, scaled, alignment) in sorted(largest.items()):
            while running and running[0][0] <= address:
                ended = max(ended, heapq.heappop(running)[1])
            if address >= island_end:  # nothing overlaps it
                running.clear()
                origin = address
                ended = base = start = _round_up(self.nbytes, _ALIGNMENT)
            else:
                start = base + address - origin
                if scale != 1:
                    start = max(base + int((address - origin) * scale), ended, previous)
                    start = _round_up(start, alignment)
            self._starts[address] = previous = start
            heapq.heappush(running, (address + size, start + scaled))
            island_end = max(island_end, address + size)
            self.nbytes = max(self.nbytes, start + scaled)

    def __getitem__(self, address: int) -> int:
        """Return the arena offset of a recorded address.

        Raises:
            KeyError: the address does not belong to a buffer.
        """
        return self._starts[address]


class Accesses:
    """The last reads and writes of each part of the arena, by stream.

    Args:
        bounds: start and end of every buffer in the arena.
    """

    def __init__(self, bounds: Iterable[int]) -> None:
        self._bounds = sorted(set(bounds))
        self._reads: list[dict[int, int]] = [{} for _ in self._bounds]
        self._writes: list[dict[int, int]] = [{} for _ in self._bounds]

    def _parts(self, begin: int, end: int) -> range:
        return range(bisect.bisect_left(self._bounds, begin), bisect.bisect_left(self._bounds, end))

    def before(self, begin: int, end: int, *, writes: bool) -> dict[int, int]:
        """The last step of each stream that an access must follow."""
        found: dict[int, int] = {}
        for part in self._parts(begin, end):
            for table in (self._writes, self._reads) if writes else (self._writes,):
                for stream, step in table[part].items():
                    found[stream] = max(found.get(stream, -1), step)
        return found

    def add(self, begin: int, end: int, stream: int, step: int, *, writes: bool) -> None:
        """Record an access."""
        table = self._writes if writes else self._reads
        for part in self._parts(begin, end):
            table[part][stream] = step


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class _Access(NamedTuple):
    begin: int
    end: int
    op: Op
    writes: bool


def _accesses(step: Step) -> list[_Access]:
    found = []
    for op in step.ops:
        if op.sent:
            found.append(_Access(op.send, op.send + op.sent * op.itemsize, op, writes=False))
        if op.received:
            found.append(_Access(op.recv, op.recv + op.received * op.itemsize, op, writes=True))
    return found


def order(steps: Sequence[Step]) -> None:
    """Order operations on different streams that use the same memory by the time of their calls."""
    bounds = [bound for step in steps for one in _accesses(step) for bound in (one.begin, one.end)]
    table = Accesses(bounds)
    known: dict[tuple[int, int], int] = {}
    for number, step in enumerate(steps):
        accesses = _accesses(step)
        for stream in {one.op.stream for one in accesses}:
            needed: dict[int, int] = {}
            for one in accesses:
                if one.op.stream == stream:
                    for other, last in table.before(one.begin, one.end, writes=one.writes).items():
                        needed[other] = max(needed.get(other, -1), last)
            for other, last in needed.items():
                if other != stream and last > known.get((stream, other), -1):
                    known[stream, other] = last
                    step.waits.append((stream, last, other))
                    steps[last].marks.add(other)
        for one in accesses:
            table.add(one.begin, one.end, one.op.stream, number, writes=one.writes)
