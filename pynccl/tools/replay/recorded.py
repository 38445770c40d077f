"""Combined recordings: processes, and the communicators that they share."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pynccl.flight.merged import ranks_text
from pynccl.tools.trace.merge import common_ids
from pynccl.tools.trace.model import Communicator, Operation, ProcessTrace
from pynccl.tools.trace.shape import COLLECTIVES, ROOTED

__all__ = ["Comm", "Process", "Recorded", "ReplayError", "counterpart", "gather"]

_ONE_SIDED = ("put_signal", "signal", "wait_signal")
# When operations were called that other ranks did not record.
_EARLY = "before others began to record"
_FULL = "after the recordings of others were full"


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
        operations: in the order of their calls, with ranks of the replay's communicators.
        several_threads: whether more than one thread issued operations.
    """

    rank: int
    trace: ProcessTrace
    operations: list[Operation] = field(default_factory=list)
    several_threads: bool = False


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


def gather(traces: Sequence[ProcessTrace], ranks: int | None = None) -> Recorded:
    """Combine the recordings of all processes.

    Args:
        traces: one per process.
        ranks: number of processes to replay; communicators are cut to these. None is all.

    Raises:
        ReplayError: the recordings do not belong together, or there are fewer of them.
    """
    if not traces:
        raise ReplayError("traces: expected at least one recording")
    for trace in traces:
        counts = Counter(id for id, _ in trace.communicators)
        if several := [id for id, count in counts.items() if count > 1]:
            raise ReplayError(
                f"process {trace.pid} has several ranks of communicator {several[0]}, such as "
                "threads or init_all(); a replay needs a process for each rank"
            )
    if ranks is not None and not 1 <= ranks <= len(traces):
        raise ReplayError(f"ranks: {ranks} requested, but there are {len(traces)} recordings")
    numbers = _process_ranks(traces)
    order = sorted(range(len(traces)), key=numbers.__getitem__)
    processes = [Process(numbers[index], traces[index]) for index in order]
    joined = common_ids(traces)
    recorded = Recorded(processes, {}, [])
    if ranks is not None and ranks < len(processes):
        gone = [process.rank for process in processes[ranks:]]
        recorded.notes.append(f"{ranks_text(gone)} excluded, as requested")
        recorded.processes = processes[:ranks]
    places = _join(recorded, processes, joined, cut=ranks is not None)
    for place, process in enumerate(recorded.processes):
        _fill(recorded, place, process, joined, places)
    _trim(recorded)
    used = {one.communicator for process in recorded.processes for one in process.operations}
    recorded.comms = {id: comm for id, comm in recorded.comms.items() if id in used}
    return recorded


def _process_ranks(traces: Sequence[ProcessTrace]) -> list[int]:
    """The rank of each process: the recorded one, or its rank in a communicator if the process had
    no RANK. If these are not all different: its rank in a communicator common to all, else its
    position.
    """
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    if len(set(ranks)) == len(traces):
        return ranks
    owns = [{one.id: one.rank for one in trace.communicators.values()} for trace in traces]
    for id in sorted(set.intersection(*map(set, owns))):
        ranks = [own[id] for own in owns]
        if len(set(ranks)) == len(traces):
            return ranks
    return list(range(len(traces)))


def _join(
    recorded: Recorded, processes: Sequence[Process], joined: dict[str, str], *, cut: bool
) -> dict[str, dict[int, int]]:
    """Create the communicators of the replay; return the new rank of each recorded one by id."""
    described: dict[str, Communicator] = {}
    owners: dict[str, dict[int, int]] = defaultdict(dict)
    for place, process in enumerate(processes):
        for comm in process.trace.communicators.values():
            id = joined.get(comm.id, comm.id)
            one = described.setdefault(id, comm)
            described[id] = dataclasses.replace(one, name=one.name or comm.name)
            if comm.nranks != one.nranks:
                raise ReplayError(
                    f"rank {process.rank}: it is rank {comm.rank} of {comm.nranks} in communicator "
                    f"{id}, which has {one.nranks} ranks in other recordings; they do not belong "
                    "together"
                )
            if comm.rank in owners[id]:
                raise ReplayError(
                    f"two recordings are of rank {comm.rank} of communicator {id}; pass one per "
                    "process"
                )
            owners[id][comm.rank] = place
    places: dict[str, dict[int, int]] = {}
    for id, one in described.items():
        count = len(recorded.processes)
        kept = {rank: place for rank, place in sorted(owners[id].items()) if place < count}
        missing = () if cut else tuple(rank for rank in range(one.nranks) if rank not in kept)
        if cut and 0 < len(kept) < one.nranks:
            recorded.notes.append(f"communicator {id} has {len(kept)} of its {one.nranks} ranks")
        places[id] = {rank: new for new, rank in enumerate(kept if cut else range(one.nranks))}
        recorded.comms[id] = Comm(id, one.name, one.creator, tuple(kept.values()), missing)
    return places


def _fill(
    recorded: Recorded,
    place: int,
    process: Process,
    joined: dict[str, str],
    places: dict[str, dict[int, int]],
) -> None:
    """Collect the operations of a process, with the communicators and ranks of the replay."""
    trace = process.trace
    excluded = failed = one_sided = 0
    captured: dict[int, list[Operation]] = defaultdict(list)
    operations: list[Operation] = []
    for operation in trace.operations:
        if operation.kind in _ONE_SIDED:
            one_sided += 1
            continue
        failed += operation.failed
        id = joined.get(operation.communicator, operation.communicator)
        if id not in recorded.comms or place not in recorded.comms[id].ranks:
            raise ReplayError(
                f"rank {process.rank}: operation {operation.sequence} is on communicator {id}, "
                "which the recording does not describe"
            )
        kept = _placed(dataclasses.replace(operation, communicator=id), places[id])
        if kept is None:
            excluded += 1
        elif operation.graph is not None:
            captured[operation.graph].append(kept)
        else:
            operations.append(kept)
    operations += _launched(trace, captured)
    process.operations = sorted(operations, key=lambda one: one.called)
    process.several_threads = len({one.thread for one in operations}) > 1
    if one_sided:
        recorded.notes.append(f"rank {process.rank}: {one_sided} one-sided operations are skipped")
    if excluded:
        recorded.notes.append(
            f"rank {process.rank}: {excluded} operations to or from excluded ranks are dropped"
        )
    if failed:
        recorded.notes.append(
            f"rank {process.rank}: {failed} operations that had failed are replayed as well"
        )


def _placed(operation: Operation, places: dict[int, int]) -> Operation | None:
    """Map an operation to the ranks of the replay. None if its peer is not replayed."""
    if operation.peer is not None and operation.peer not in places:
        return None
    peer = None if operation.peer is None else places[operation.peer]
    root = operation.root
    if operation.kind in ROOTED and root is not None:
        root = places.get(root, 0)  # the first rank replaces a root that is not replayed
    return dataclasses.replace(operation, peer=peer, root=root)


def _launched(trace: ProcessTrace, captured: dict[int, list[Operation]]) -> list[Operation]:
    """Expand graph launches into their operations, one group per recorded group and launch."""
    return [
        dataclasses.replace(
            operation,
            called=launch.called,
            stream=launch.stream,
            thread=launch.thread,
            began=None,
            ended=None,
        )
        for launch in trace.launches
        for operation in captured.get(launch.graph, ())
    ]


# --- recordings that begin or end at different times


def counterpart(operation: Operation) -> tuple[str, int | None] | None:
    """The count an operation belongs to: collectives, or messages by direction and peer."""
    if operation.kind in COLLECTIVES:
        return "", None
    if operation.kind in ("send", "recv"):
        return operation.kind, operation.peer
    return None


def _trim(recorded: Recorded) -> None:
    """Drop operations that some ranks did not record: too early, or beyond the memory limit."""
    limits = _limits(recorded)
    for place, process in enumerate(recorded.processes):
        kept: list[Operation] = []
        dropped: Counter[str] = Counter()
        for operation in process.operations:
            key = _key(recorded, place, operation)
            if operation.number and key is not None:
                first, last = limits[key]
                if operation.number < first or operation.number > last:
                    dropped[_EARLY if operation.number < first else _FULL] += 1
                    continue
            kept.append(operation)
        process.operations = kept
        for when, count in dropped.items():
            recorded.notes.append(f"rank {process.rank}: {count} operations {when} are dropped")


def _limits(recorded: Recorded) -> dict[tuple[object, ...], tuple[int, float]]:
    """The first and the last number of the operations of a key that all ranks have recorded."""
    numbers: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, process in enumerate(recorded.processes):
        for operation in process.operations:
            if operation.number and (key := _key(recorded, place, operation)) is not None:
                numbers[key][place].append(operation.number)
    is_full = any(process.trace.dropped for process in recorded.processes)
    limits = {}
    for key, by_place in numbers.items():
        last = math.inf
        if is_full:
            is_complete = by_place.keys() >= set(_sharers(recorded, key))
            last = min(own[-1] for own in by_place.values()) if is_complete else 0
        limits[key] = max(own[0] for own in by_place.values()), last
    return limits


def _key(recorded: Recorded, place: int, operation: Operation) -> tuple[object, ...] | None:
    """A key that is equal for operations numbered together; None for captured and other ones."""
    found = counterpart(operation)
    if found is None or operation.graph is not None:
        return None
    kind, peer = found
    if peer is None:
        return (operation.communicator,)
    ranks = recorded.comms[operation.communicator].ranks
    other = ranks[peer] if peer < len(ranks) else -1 - peer
    return (operation.communicator, *((place, other) if kind == "send" else (other, place)))


def _sharers(recorded: Recorded, key: tuple[object, ...]) -> list[int]:
    if len(key) == 1:
        return list(recorded.comms[str(key[0])].ranks)
    return [place for place in key[1:] if isinstance(place, int) and place >= 0]
