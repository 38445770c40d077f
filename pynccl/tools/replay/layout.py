"""Recorded addresses in the memory of a replay: equal stay equal, and overlaps are kept."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable

__all__ = ["ALIGNMENT", "Accesses", "Layout"]

ALIGNMENT = 64  # bytes; of the begin of memory that was not part of other memory


class Layout:
    """Places of recorded buffers in one arena.

    Buffers that overlap, also through others, keep their order. Scaled by less than one, buffers
    that were apart stay apart.

    Args:
        buffers: (address, recorded bytes, bytes in the replay, alignment in the replay) of each.
        scale: what recorded distances are multiplied by.
    """

    def __init__(self, buffers: Iterable[tuple[int, int, int, int]], scale: float) -> None:
        # Of each address the largest.
        largest: dict[int, tuple[int, int, int]] = {}
        for address, size, scaled, alignment in buffers:
            old = largest.get(address, (0, 0, 1))
            largest[address] = (max(old[0], size), max(old[1], scaled), max(old[2], alignment))
        self._starts: dict[int, int] = {}
        self.nbytes = 0
        island_end = -1  # of the recording
        origin = base = 0  # where the island begins in the recording, and in the arena
        ended = 0  # the end in the arena of what has ended in the recording
        running: list[tuple[int, int]] = []  # (recorded end, end in the arena)
        previous = 0
        for address, (size, scaled, alignment) in sorted(largest.items()):
            while running and running[0][0] <= address:
                ended = max(ended, heapq.heappop(running)[1])
            if address >= island_end:  # nothing overlaps it
                running.clear()
                origin = address
                ended = base = start = _round_up(self.nbytes, ALIGNMENT)
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
        """Where a recorded address is in the arena.

        Raises:
            KeyError: it is no buffer's.
        """
        return self._starts[address]


class Accesses:
    """Who has last read and written each part of the arena, by stream.

    Args:
        bounds: the begin and the end of every buffer in the arena.
    """

    def __init__(self, bounds: Iterable[int]) -> None:
        self._bounds = sorted(set(bounds))
        self._reads: list[dict[int, int]] = [{} for _ in self._bounds]
        self._writes: list[dict[int, int]] = [{} for _ in self._bounds]

    def _parts(self, begin: int, end: int) -> range:
        return range(bisect.bisect_left(self._bounds, begin), bisect.bisect_left(self._bounds, end))

    def before(self, begin: int, end: int, *, writes: bool) -> dict[int, int]:
        """The last step of each stream that an access must come after."""
        found: dict[int, int] = {}
        for part in self._parts(begin, end):
            for table in (self._writes, self._reads) if writes else (self._writes,):
                for stream, step in table[part].items():
                    found[stream] = max(found.get(stream, -1), step)
        return found

    def add(self, begin: int, end: int, stream: int, step: int, *, writes: bool) -> None:
        """Note an access."""
        table = self._writes if writes else self._reads
        for part in self._parts(begin, end):
            table[part][stream] = step


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
