"""Communicators merged from several dumps, with all their ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pynccl.flight.dump import Communicator, Dump, DumpError, Record

__all__ = ["Member", "Merged", "merge", "ranks_text"]

_MOST_RANKS = 1 << 20  # larger than any job; larger values are invalid


@dataclass(frozen=True)
class Member:
    """One rank of a communicator, and its process."""

    dump: Dump
    communicator: Communicator

    @cached_property
    def collectives(self) -> Mapping[int, Record]:
        """The most recent collectives by number."""
        records = self.communicator.records
        return {r.number: r for r in records if r.is_collective and r.number is not None}

    @property
    def first_collective(self) -> int:
        """The number of the oldest collective with a record."""
        return min(self.collectives, default=self.communicator.collectives + 1)

    @property
    def complete(self) -> bool:
        """Whether the records include the first operation."""
        records = self.communicator.records
        return not records or records[0].sequence == 1

    @cached_property
    def messages(self) -> Mapping[tuple[str, int], Mapping[int, Record]]:
        """The most recent sends to ("send", peer), and receives from ("recv", peer), by number."""
        found: dict[tuple[str, int], dict[int, Record]] = defaultdict(dict)
        for record in self.communicator.records:
            if record.is_message and record.peer is not None and record.number is not None:
                found[record.operation, record.peer][record.number] = record
        return found

    def waited(self, record: Record) -> float:
        """Return the seconds since an operation was called."""
        return self.dump.seconds_since(record.time_created_ns)


@dataclass(frozen=True)
class Merged:
    """A communicator with all of its ranks that have a dump."""

    id: str
    nranks: int
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        return next((m.communicator.name for m in self if m.communicator.name), None)

    @property
    def label(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        return f"communicator {name}{self.id}"

    @property
    def missing(self) -> list[int]:
        """The ranks without a dump."""
        return [rank for rank in range(self.nranks) if rank not in self.members]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())


def merge(dumps: Sequence[Dump]) -> list[Merged]:
    """Merge the communicators of all dumps, largest first.

    Raises:
        DumpError: two files contain the same rank of a communicator, or disagree on its size.
    """
    joined = {c.joined: c.id for dump in dumps for c in dump.communicators if c.joined is not None}
    merged: dict[str, Merged] = {}
    for dump in dumps:
        for name, rank, nranks, communicator in _named(dump, joined):
            one = merged.setdefault(name, Merged(name, nranks))
            if not 0 <= rank < nranks <= _MOST_RANKS:
                raise DumpError(f"{dump.path}: rank {rank} of {nranks} in communicator {name}")
            if nranks != one.nranks:
                raise DumpError(
                    f"{dump.path}: rank {rank} of {nranks} in communicator {name}, which has "
                    f"{one.nranks} ranks in other files; the files do not belong together"
                )
            if rank in one.members:
                other = one.members[rank].dump.path
                raise DumpError(
                    f"{dump.path}: rank {rank} of communicator {name} is also in {other}"
                )
            one.members[rank] = Member(dump, communicator)
    for one in merged.values():
        ordered = dict(sorted(one.members.items()))
        one.members.clear()
        one.members.update(ordered)
    return sorted(merged.values(), key=lambda one: -one.nranks)


def _named(dump: Dump, joined: Mapping[str, str]) -> Iterable[tuple[str, int, int, Communicator]]:
    """Yield the communicators of a dump with a name that is equal on all ranks, rank and size.

    Two communicators with one id in a process, from repeated equal calls of shrink(), are
    distinguished by their order.
    """
    seen: dict[tuple[str, int], int] = {}
    for communicator in dump.communicators:
        if communicator.rank is None or communicator.nranks is None:
            continue  # not ready
        name = joined.get(communicator.id, communicator.id)
        times = seen[name, communicator.rank] = seen.get((name, communicator.rank), 0) + 1
        if times > 1:
            name = f"{name}/{times}"
        yield name, communicator.rank, communicator.nranks, communicator


def ranks_text(ranks: Iterable[int]) -> str:
    """Format ranks as text, with ranges if that is shorter.

    Args:
        ranks: the ranks, in any order.

    Returns:
        A text such as "rank 2" or "ranks 0, 1, 3".
    """
    ordered = sorted(ranks)
    parts: list[str] = []
    start = 0
    for i, rank in enumerate(ordered):
        if i + 1 < len(ordered) and ordered[i + 1] == rank + 1:
            continue
        run = ordered[start : i + 1]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 3 else [str(one) for one in run]
        start = i + 1
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"
