"""Determines which ranks an overdue operation waits for, from the dumps of ranks that answered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from pynccl.flight.analysis import analyse
from pynccl.flight.dump import Dump
from pynccl.flight.merged import merge, ranks_text

__all__ = ["Missing", "find_missing", "shortened"]

_RECORDS = 64  # records of collectives, and of other operations, in an answer
_ENDED = ("done", "failed", "captured")


class Missing(NamedTuple):
    """Why an operation is overdue.

    Attributes:
        text: the reason, or "" if unknown.
        ranks: the ranks whose calls differ from the others' or are missing, or None if unknown.
    """

    text: str
    ranks: list[int] | None


def shortened(dump: str, comm: str) -> str:
    """Shorten a dump to a communicator's last records and the incomplete ones of others."""
    value = json.loads(dump)
    for one in value["communicators"]:
        records = one["records"]
        if comm in (one["id"], one["joined"]):
            messages = [record for record in records if record["peer"] is not None]
            collectives = [record for record in records if record["peer"] is None]
            kept = collectives[-_RECORDS:] + messages[-_RECORDS:]
            one["records"] = sorted(kept, key=lambda record: record["sequence"])
        else:
            one["records"] = [record for record in records if record["state"] not in _ENDED]
    return json.dumps(value)


def find_missing(comm: str, rank: int, nranks: int, dumps: Iterable[Dump]) -> Missing:
    """Find the ranks that an overdue operation waits for.

    Args:
        comm: the id of the communicator.
        rank: the rank whose operation is overdue.
        nranks: the number of ranks.
        dumps: the dumps of the ranks that answered.
    """
    dumps = list(dumps)
    found = [
        finding
        for finding in analyse(dumps).findings
        if finding.communicator == comm and finding.kind != "no_file"
    ]
    found = [finding for finding in found if rank in finding.waiting] or found
    texts = [finding.text for finding in found]
    ranks = {rank for finding in found for rank in finding.ranks}
    silent = _awaited(comm, rank, nranks, dumps)
    if silent:
        verb = "has" if len(silent) == 1 else "have"
        texts.append(
            f"{ranks_text(silent)} {verb} not answered: the process has ended, is stopped or busy"
        )
    return Missing("; ".join(texts), sorted(ranks | silent)) if texts else Missing("", None)


def _awaited(comm: str, rank: int, nranks: int, dumps: list[Dump]) -> set[int]:
    """Return the ranks without a dump that this rank may wait for.

    If it waits in sends and receives only, these are their peers.
    """
    merged = next((one for one in merge(dumps) if one.id == comm), None)
    if merged is None:
        return set()
    silent = set(merged.missing)
    own = merged.members.get(rank)
    if own is None or own.communicator.calls:
        return silent
    waits = [record for record in own.communicator.records if record.is_open]
    if waits and all(record.is_message for record in waits):
        return silent & {record.peer for record in waits if record.peer is not None}
    return silent
