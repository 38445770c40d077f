"""Signals of one-sided operations: the numbers sent and awaited."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pynccl.tools.replay.model import Recorded, Sync
from pynccl.tools.trace.model import Operation, Signal

__all__ = ["ONE_SIDED", "Excess", "Key", "excess", "trim"]

ONE_SIDED = frozenset(("put_signal", "signal", "wait_signal"))


class Key(NamedTuple):
    """The key by which signals are counted; ranks are those of the communicator."""

    communicator: str
    sender: int
    receiver: int
    signal: int
    context: int


# The signals of a key that are awaited, those that were sent, and the first wait for more.
Excess = tuple[Key, int, int, Operation]


def _counts(recorded: Recorded) -> tuple[Counter[Key], Counter[Key]]:
    """The signals sent and the signals awaited, for senders with a file."""
    sent: Counter[Key] = Counter()
    waited: Counter[Key] = Counter()
    for place, process in enumerate(recorded.processes):
        for operation in process.operations:
            if operation.kind not in ONE_SIDED:
                continue
            rank = recorded.comms[operation.communicator].rank_of(place)
            if operation.kind == "wait_signal":
                for key, signal in _waits(recorded, operation, rank):
                    waited[key] += signal.times
            elif operation.peer is not None:
                indexes = operation.signal or 0, operation.context or 0
                sent[Key(operation.communicator, rank, operation.peer, *indexes)] += 1
    return sent, waited


def _waits(recorded: Recorded, operation: Operation, rank: int) -> Iterator[tuple[Key, Signal]]:
    missing = recorded.comms[operation.communicator].missing
    for one in operation.signals:
        if one.peer not in missing:
            yield Key(operation.communicator, one.peer, rank, one.signal, one.context), one


def excess(recorded: Recorded) -> Iterator[Excess]:
    """Signals that are awaited but were never sent."""
    sent, waited = _counts(recorded)
    found = {key for key, number in waited.items() if number > sent[key]}
    if not found:
        return
    for place, process in enumerate(recorded.processes):
        so_far: Counter[Key] = Counter()
        for operation in process.operations:
            if operation.kind != "wait_signal":
                continue
            rank = recorded.comms[operation.communicator].rank_of(place)
            for key, signal in _waits(recorded, operation, rank):
                so_far[key] += signal.times
                if key in found and so_far[key] > sent[key]:
                    found.remove(key)
                    yield key, waited[key], sent[key], operation


def trim(recorded: Recorded) -> None:
    """Drop waits for signals that the sender sent before its recording began or after it was full.

    The first operation of a recording that began late has a sequence number other than 1.
    """
    sent, waited = _counts(recorded)
    surplus = _Surplus(Counter(), {})
    for key, number in waited.items():
        if number <= sent[key]:
            continue
        sender = recorded.processes[recorded.comms[key.communicator].place_of(key.sender)]
        if sender.first.get(key.communicator, 1) > 1:
            surplus.early[key] = number - sent[key]
        elif sender.trace.dropped:
            surplus.left[key] = sent[key]
    if not surplus.early and not surplus.left:
        return
    for place, process in enumerate(recorded.processes):
        items: list[Operation | Sync] = []
        before = Counter(surplus.dropped)
        for item in process.items:
            if not isinstance(item, Operation) or not item.signals:
                items.append(item)
                continue
            rank = recorded.comms[item.communicator].rank_of(place)
            kept = [surplus.take(key, one) for key, one in _waits(recorded, item, rank)]
            signals = tuple(one for one in kept if one.times)
            if signals:
                items.append(dataclasses.replace(item, signals=signals))
        process.items = items
        for when, number in (surplus.dropped - before).items():
            recorded.notes.append(
                f"rank {process.rank}: waits for {number} signals {when} are dropped"
            )


@dataclass
class _Surplus:
    """Waits to drop.

    Attributes:
        early: number of initial waits to drop.
        left: number of waits to preserve until the sender's recording was full.
        dropped: number of dropped waits, by reason.
    """

    early: Counter[Key]
    left: dict[Key, int]
    dropped: Counter[str] = field(default_factory=Counter)

    def take(self, key: Key, one: Signal) -> Signal:
        """The part of the next wait that is preserved."""
        early = min(one.times, self.early[key])
        self.early[key] -= early
        times = one.times - early
        kept = min(times, self.left.get(key, times))
        if key in self.left:
            self.left[key] -= kept
        self.dropped["before others began to record"] += early
        self.dropped["after the recordings of others were full"] += times - kept
        return one._replace(times=kept)
