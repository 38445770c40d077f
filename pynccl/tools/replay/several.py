"""Recordings of processes with several ranks of a communicator: init_all(), or threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pynccl.tools.trace.model import Operation, ProcessTrace, Wait

__all__ = ["split"]


def split(trace: ProcessTrace) -> list[ProcessTrace]:
    """Split a recording into one per rank. Ranks of different communicators belong together if the
    same thread used them, else by their order.
    """
    ranks: dict[str, list[int]] = {}
    for operation in trace.operations:
        known = ranks.setdefault(operation.communicator, [])
        rank = _rank(trace, operation)
        if rank is not None and rank not in known:
            known.append(rank)
    if all(len(known) < 2 for known in ranks.values()):
        return [trace]
    by_thread = _by_thread(trace)
    if by_thread is None:
        width = max(map(len, ranks.values()))
        by_order = {id: sorted(known) for id, known in ranks.items()}
        by_thread = [
            {id: known[place] for id, known in by_order.items() if place < len(known)}
            for place in range(width)
        ]
    return [_part(trace, members) for members in by_thread]


def _rank(trace: ProcessTrace, one: Operation | Wait) -> int | None:
    comm = None if one.rank is not None else trace.communicator_of(one)
    return one.rank if comm is None else comm.rank


def _by_thread(trace: ProcessTrace) -> list[dict[str, int]] | None:
    """The rank of each thread in its communicators; None if threads share ranks or have several."""
    threads: dict[int, dict[str, int]] = {}
    users: dict[tuple[str, int], int] = {}
    for operation in trace.operations:
        rank = _rank(trace, operation)
        if rank is None:
            continue
        own = threads.setdefault(operation.thread, {})
        user = users.setdefault((operation.communicator, rank), operation.thread)
        if own.setdefault(operation.communicator, rank) != rank or user != operation.thread:
            return None
    return list(threads.values())


def _part(trace: ProcessTrace, members: dict[str, int]) -> ProcessTrace:
    """The part of these ranks."""
    operations = _of(trace, trace.operations, members)
    threads = {operation.thread for operation in operations}
    if _by_thread(trace) is None or len(threads) > 1:
        threads.clear()  # they act for several ranks
    return dataclasses.replace(
        trace,
        rank=None,
        communicators={
            (id, rank): comm
            for id, rank in members.items()
            if (comm := trace.communicator(id, rank)) is not None
        },
        windows=[one for one in trace.windows if members.get(one.communicator) == one.rank],
        operations=operations,
        runs=_of(trace, trace.runs, members),
        waits=[
            wait
            for wait in trace.waits
            if (
                wait.thread in threads
                if wait.communicator is None
                else members.get(wait.communicator) == _rank(trace, wait)
            )
        ],
    )


def _of(
    trace: ProcessTrace, operations: Sequence[Operation], members: dict[str, int]
) -> list[Operation]:
    return [one for one in operations if members.get(one.communicator) == _rank(trace, one)]
