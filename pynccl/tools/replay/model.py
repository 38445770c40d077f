"""The recordings as a replay sees them: processes, and the communicators that they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from pynccl.tools.trace.model import Operation, ProcessTrace, Wait

__all__ = ["Comm", "Process", "Recorded", "ReplayError"]


class ReplayError(ValueError):
    """Recordings that do not belong together or cannot be replayed, or an invalid argument."""


@dataclass(frozen=True)
class Comm:
    """A communicator of the replay.

    Attributes:
        id: the recorded id.
        name: set by the user.
        creator: the nccl.h function that created it.
        ranks: the process of each rank, as an index into Recorded.processes.
        missing: the recorded ranks without a file.
    """

    id: str
    name: str | None
    creator: str
    ranks: tuple[int, ...]
    missing: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        return self.id if self.name is None else f"{self.id} ({self.name})"

    def rank_of(self, place: int) -> int:
        """The rank of a process, given its index in Recorded.processes."""
        return self._known[self.ranks.index(place)]

    @cached_property
    def _known(self) -> list[int]:
        nranks = len(self.ranks) + len(self.missing)
        return sorted(set(range(nranks)).difference(self.missing))


@dataclass
class Process:
    """The part of one process in a replay.

    Attributes:
        rank: the process's rank in the recording.
        trace: the recording.
        items: operations, with ranks of the replay's communicators, and waits of threads and
            streams, in the order of their calls.
        several_threads: whether more than one thread issued operations.
    """

    rank: int
    trace: ProcessTrace
    items: list[Operation | Wait] = field(default_factory=list)
    several_threads: bool = False

    @property
    def operations(self) -> list[Operation]:
        return [item for item in self.items if isinstance(item, Operation)]


@dataclass
class Recorded:
    """The recordings of all processes.

    Attributes:
        comms: by id, in the order of creation.
        notes: differences between the recordings and the replay, as text.
    """

    processes: list[Process]
    comms: dict[str, Comm]
    notes: list[str]

    def places(self, comm: Comm) -> str:
        """Text for the processes of a communicator's ranks, if their numbers differ."""
        ranks = [self.processes[place].rank for place in comm.ranks]
        if ranks == list(range(len(ranks))):
            return ""
        return f", whose ranks are the processes {', '.join(map(str, ranks))}"
