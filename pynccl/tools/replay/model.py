"""What recordings are for a replay: processes, and the communicators that they share."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from pynccl.tools.trace.model import Operation, ProcessTrace, Window

__all__ = ["Comm", "Process", "Recorded", "Sync"]


@dataclass(frozen=True)
class Comm:
    """A communicator of the replay.

    Attributes:
        id: the recorded one.
        name: given by the user.
        creator: the function of nccl.h that made it.
        ranks: the process of each rank, by its place in Recorded.processes.
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
        """The rank of a process, by its place in Recorded.processes."""
        return self._known[self.ranks.index(place)]

    def place_of(self, rank: int) -> int:
        """The process of a rank that is not missing."""
        return self.ranks[self._known.index(rank)]

    @cached_property
    def _known(self) -> list[int]:
        missing = set(self.missing)
        nranks = len(self.ranks) + len(missing)
        return [rank for rank in range(nranks) if rank not in missing]


@dataclass(frozen=True)
class Sync:
    """A wait of the recording.

    Attributes:
        stream: that waits; None: the thread does.
        target: the stream that is waited for, or the id of the communicator and the sequence number
            of an operation.
        called: when.
        recorded: when an event was recorded on the stream: what was called there later is not
            waited for. None: there is no event.
    """

    stream: int | None
    target: int | tuple[str, int]
    called: int
    recorded: int | None = None


@dataclass
class Process:
    """What one process does in a replay.

    Attributes:
        rank: of the process in the recording.
        trace: the recording.
        items: operations with the ranks of the replay's communicators, and waits of the thread, in
            the order of issue.
        several_threads: more than one thread issued operations.
        windows: of the replay's communicators.
        sequences: the recorded sequence numbers of each communicator.
    """

    rank: int
    trace: ProcessTrace
    items: list[Operation | Sync] = field(default_factory=list)
    several_threads: bool = False
    windows: list[Window] = field(default_factory=list)
    sequences: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def operations(self) -> list[Operation]:
        return [item for item in self.items if isinstance(item, Operation)]


@dataclass
class Recorded:
    """The recordings of all processes.

    Attributes:
        comms: in the order in which they are made, by id.
        notes: what is not replayed, or replayed differently.
    """

    processes: list[Process]
    comms: dict[str, Comm]
    notes: list[str]

    def places(self, comm: Comm) -> str:
        """Which processes the ranks of a communicator are, where they have other numbers."""
        ranks = [self.processes[place].rank for place in comm.ranks]
        if ranks == list(range(len(ranks))):
            return ""
        return f", whose ranks are the processes {', '.join(map(str, ranks))}"
