"""Checks a recording for errors between ranks before it is replayed."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from pynccl.flight import dump as flight
from pynccl.flight.analysis import Finding, analyse
from pynccl.tools.replay.recorded import Recorded, counterpart
from pynccl.tools.trace.model import Operation

__all__ = ["check", "described"]


def described(operation: Operation) -> str:
    """Describe an operation, such as "all_reduce #5 (float32, count=4, sum)"."""
    record = _record(operation, operation.number)
    number = f"sequence {operation.sequence}" if record.number is None else f"#{record.number}"
    return f"{operation.kind} {number} {record.arguments}"


def check(recorded: Recorded) -> list[Finding]:
    """Compare the operations of all ranks by communicator and position.

    The texts of the findings name the communicator and its processes. Causes come first.
    """
    dumps = [_dump(recorded, place) for place in range(len(recorded.processes))]
    found = []
    for finding in analyse(dumps).findings:
        comm = recorded.comms.get(finding.communicator)
        if comm is not None:
            text = f"communicator {comm.label}{recorded.places(comm)}: {finding.text}"
            found.append(dataclasses.replace(finding, text=text))
    return sorted(found, key=lambda finding: finding.kind in ("stuck", "call"))


def _record(operation: Operation, number: int | None, sequence: int = 0) -> flight.Record:
    return flight.Record(
        sequence=sequence,
        operation=operation.kind,
        number=number,
        dtype=operation.dtype,
        count=operation.count,
        op=operation.op,
        root=operation.root,
        peer=operation.peer,
        state="done",
        time_created_ns=operation.called,
        stream="",
        fingerprint="",
    )


def _dump(recorded: Recorded, place: int) -> flight.Dump:
    """A process's operations in the form of a flight record, numbered by position."""
    process = recorded.processes[place]
    records: dict[str, list[flight.Record]] = defaultdict(list)
    numbers: dict[tuple[object, ...], int] = {}
    for operation in process.operations:
        if (kind := counterpart(operation)) is None:
            continue
        key = (operation.communicator, *kind)
        first = (operation.number or 1) if operation.graph is None else 1
        numbers[key] = numbers.get(key, first - 1) + 1
        own = records[operation.communicator]
        own.append(_record(operation, numbers[key], len(own) + 1))
    communicators = [
        flight.Communicator(
            id=comm.id,
            joined=None,
            parent=None,
            name=comm.name,
            creator=comm.creator,
            rank=comm.rank_of(place),
            nranks=len(comm.ranks) + len(comm.missing),
            device=None,
            timeout=None,
            failure=None,
            calls=[],
            collectives=numbers.get((comm.id, "", None), 0),
            records=records[comm.id],
        )
        for comm in recorded.comms.values()
        if place in comm.ranks
    ]
    trace = process.trace
    return flight.Dump(
        f"recording {place}", "", trace.host, trace.pid, process.rank, trace.ended, communicators
    )
