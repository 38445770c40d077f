"""Several traces on one clock, with their operations matched."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pynccl.tools.trace.model import Operation, ProcessTrace, TraceError
from pynccl.tools.trace.shape import COLLECTIVES

__all__ = ["Clock", "Match", "Member", "Merged", "Waited", "common_ids", "merge"]

# In all other collectives every rank depends on every other: none ends before the last has begun.
_FROM_ROOT = {"broadcast", "scatter"}
_TO_ROOT = {"reduce", "gather"}
_MESSAGES = {"send", "recv"}


@dataclass(frozen=True)
class Clock:
    """The offset that converts the times of a trace to those of the first one.

    Attributes:
        offset: in nanoseconds; it is added.
        method: "same" (one machine), "operations" (matched with those of other machines), "epoch"
            (the machines' wall clocks).
        operations: number of matched collectives that the offset is derived from.
    """

    offset: int
    method: str
    operations: int = 0


@dataclass(frozen=True)
class Member:
    """An operation of one of the traces.

    Attributes:
        trace: index of the trace.
        index: index of the operation in it.
        rank: rank in the communicator.
        operation: the operation, with times of its own trace.
    """

    trace: int
    index: int
    rank: int
    operation: Operation


@dataclass(frozen=True)
class Match:
    """Matching operations: one collective on its ranks, or a message.

    Attributes:
        communicator: its id.
        number: number of the collective or message.
        members: ordered by rank; the sender of a message comes first.
    """

    communicator: str
    number: int
    members: list[Member]

    @property
    def kind(self) -> str:
        """The kind of the operations, such as "all_reduce"; for a message that of the sender."""
        return self.members[0].operation.kind

    @property
    def is_message(self) -> bool:
        """Whether it is a send with its receive."""
        return self.kind in _MESSAGES


@dataclass(frozen=True)
class Waited:
    """The wait of an operation for another rank.

    Attributes:
        trace: index of the trace of the awaited operation.
        rank: rank of the awaited operation in the communicator.
        nanoseconds: from the start of the waiting operation to the start of the awaited one.
    """

    trace: int
    rank: int
    nanoseconds: int


@dataclass
class Merged:
    """Merged traces.

    Attributes:
        traces: in the order of their ranks, with their own times.
        clocks: one per trace.
        matches: the matching operations of two or more traces.
        waited: by the index of the trace and of the operation, the rank that it waited for.
        different: descriptions of collectives whose kinds differ between ranks for the same number.
    """

    traces: list[ProcessTrace]
    clocks: list[Clock]
    matches: list[Match]
    waited: dict[tuple[int, int], Waited] = field(default_factory=dict)
    different: list[str] = field(default_factory=list)

    def time(self, trace: int, time: int) -> int:
        """Convert a time of a trace to the clock of the first one.

        Args:
            trace: index of the trace.
            time: in nanoseconds.

        Returns:
            Nanoseconds.
        """
        return time + self.clocks[trace].offset

    def began(self, member: Member) -> int | None:
        """When an operation began, on the clock of the first trace.

        Args:
            member: an operation of a match.

        Returns:
            Nanoseconds; None if unknown.
        """
        began = member.operation.began
        return None if began is None else self.time(member.trace, began)

    def ended(self, member: Member) -> int | None:
        """When an operation ended, on the clock of the first trace.

        Args:
            member: an operation of a match.

        Returns:
            Nanoseconds; None if unknown.
        """
        ended = member.operation.ended
        return None if ended is None else self.time(member.trace, ended)

    def label(self, trace: int) -> str:
        """The name of a trace's process for display.

        Args:
            trace: index of the trace.

        Returns:
            For example "rank 2", or "pid 71 on node1" for a process without a rank.
        """
        one = self.traces[trace]
        return f"pid {one.pid} on {one.host}" if one.rank is None else f"rank {one.rank}"


def common_ids(traces: Iterable[ProcessTrace]) -> dict[str, str]:
    """The id of a communicator on its first ranks, by its id on those that joined by grow()."""
    return {
        one.joined: one.id
        for trace in traces
        for one in trace.communicators.values()
        if one.joined is not None
    }


def merge(traces: Sequence[ProcessTrace]) -> Merged:
    """Merge traces.

    Args:
        traces: of the processes of one program, in any order.

    Returns:
        The traces in the order of their ranks, with their clocks and matches.

    Raises:
        TraceError: traces is empty, or two are of the same rank of a communicator.
    """
    if not traces:
        raise TraceError("traces: expected at least one")
    ordered = sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0))
    different: list[str] = []
    matches = list(_matches(ordered, different))
    merged = Merged(ordered, _clocks(ordered, matches), matches, different=different)
    for match in matches:
        merged.waited.update(_waited(merged, match))
    return merged


# --- matching operations


def _matches(traces: Sequence[ProcessTrace], different: list[str]) -> Iterator[Match]:
    joined = common_ids(traces)
    _check_ranks(traces, joined)
    found: dict[tuple[str, object, int], list[Member]] = defaultdict(list)
    for position, trace in enumerate(traces):
        for index, operation in enumerate(trace.operations):
            communicator = trace.communicator_of(operation)
            if operation.number is None or operation.graph is not None or communicator is None:
                continue
            rank = communicator.rank
            if operation.kind in COLLECTIVES:
                route: object = None
            elif operation.kind in _MESSAGES:
                ends = (rank, operation.peer)
                route = ends if operation.kind == "send" else ends[::-1]
            else:
                continue
            member = Member(position, index, rank, operation)
            name = joined.get(communicator.id, communicator.id)
            found[name, route, operation.number].append(member)
    for (name, route, number), members in found.items():
        kinds = {member.operation.kind for member in members}
        if route is None and len(kinds) > 1:
            calls = ", ".join(f"{one.operation.kind} on rank {one.rank}" for one in members)
            different.append(f"communicator {name}: #{number} is {calls}")
        elif len(members) > 1:
            first = "recv" if route is not None else ""  # the send precedes it
            members.sort(key=lambda one: (one.operation.kind == first, one.rank))
            yield Match(name, number, members)


def _check_ranks(traces: Sequence[ProcessTrace], joined: Mapping[str, str]) -> None:
    seen: dict[tuple[str, int], ProcessTrace] = {}
    for trace in traces:
        ranks = {(one.id, one.rank) for one in trace.communicators.values()}
        ranks |= {(one.communicator, one.rank) for one in trace.operations if one.rank is not None}
        for own, rank in sorted(ranks):
            name = joined.get(own, own)
            other = seen.setdefault((name, rank), trace)
            if other is not trace:
                raise TraceError(
                    f"rank {rank} of communicator {name} is in two traces, of pid {other.pid} "
                    f"on {other.host} and of pid {trace.pid} on {trace.host}"
                )


# --- which rank waited for which


def _waited(merged: Merged, match: Match) -> Iterator[tuple[tuple[int, int], Waited]]:
    begun = [(began, one) for one in match.members if (began := merged.began(one)) is not None]
    if len(begun) < 2:
        return
    for own, one in begun:
        others = [pair for pair in begun if pair[1] is not one and _needs(match, one, pair[1])]
        if not others:
            continue
        last, other = max(others, key=lambda pair: pair[0])
        ended = merged.ended(one)
        nanoseconds = (last if ended is None else min(last, ended)) - own
        if nanoseconds > 0:
            yield (one.trace, one.index), Waited(other.trace, other.rank, nanoseconds)


def _needs(match: Match, one: Member, other: Member) -> bool:
    """Whether an operation cannot end before another one of its match has begun."""
    if match.is_message:
        return one.operation.kind == "recv" and other.operation.kind == "send"
    if match.kind in _FROM_ROOT:
        return other.rank == one.operation.root
    if match.kind in _TO_ROOT:
        return one.rank == one.operation.root
    return True


# --- clocks


def _clocks(traces: Sequence[ProcessTrace], matches: Iterable[Match]) -> list[Clock]:
    # The differences of the ends of collectives, which all ranks leave at about the same time,
    # between the machine of the lowest rank and each other machine.
    differences: dict[tuple[str, str], list[int]] = defaultdict(list)
    for match in matches:
        if match.is_message or match.kind in _FROM_ROOT | _TO_ROOT:
            continue
        ends: dict[str, list[int]] = defaultdict(list)
        for one in match.members:
            if one.operation.ended is not None:
                ends[traces[one.trace].boot].append(one.operation.ended)
        first = next(iter(ends), "")
        for boot in list(ends)[1:]:
            difference = statistics.median_low(ends[first]) - statistics.median_low(ends[boot])
            differences[first, boot].append(difference)
            differences[boot, first].append(-difference)
    clocks = {traces[0].boot: Clock(0, "same")}
    epochs: dict[str, int] = {}
    for trace in traces:
        epochs.setdefault(trace.boot, trace.epoch)
    while len(clocks) < len(epochs):
        # Next comes the pair of a known and an unknown clock with the most operations.
        pairs = [pair for pair in differences if pair[0] in clocks and pair[1] not in clocks]
        if pairs:
            pair = max(pairs, key=lambda pair: len(differences[pair]))
            offset = clocks[pair[0]].offset + round(statistics.median(differences[pair]))
            clocks[pair[1]] = Clock(offset, "operations", len(differences[pair]))
        else:
            boot = next(boot for boot in epochs if boot not in clocks)
            clocks[boot] = Clock(epochs[boot] - epochs[traces[0].boot], "epoch")
    return [clocks[trace.boot] for trace in traces]
