"""Flight record dumps constructed for tests."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any

from pynccl.flight.dump import Dump, parse

__all__ = ["NOW", "communicator", "dump", "dump_json", "record"]

NOW = 1_700_000_000_000_000_000


def record(
    operation: str, state: str = "done", *, age: float = 60, **fields: object
) -> dict[str, Any]:
    """An operation called ``age`` seconds before the dump. communicator() numbers it."""
    return {
        "operation": operation,
        "dtype": "float32",
        "count": 4,
        "op": "sum" if "reduce" in operation else None,
        "root": 0 if operation in ("broadcast", "reduce", "gather", "scatter") else None,
        "peer": None,
        "state": state,
        "time_created_ns": NOW - round(age * 1e9),
        "stream": "0" * 16,
        "fingerprint": "",
        **fields,
    }


def communicator(
    rank: int, nranks: int, records: list[dict[str, Any]], *, lost: int = 0, **fields: object
) -> dict[str, Any]:
    """A rank of a communicator that lost the first ``lost`` of its collectives and messages."""
    counts: Counter[tuple[str, object]] = Counter()
    fingerprint = ""
    numbered = []
    for sequence, one in enumerate(records, 1):
        message = one["operation"] in ("send", "recv")
        key = (one["operation"], one["peer"]) if message else ("", None)
        counts[key] += 1
        if not message:
            text = f"{fingerprint} {one['operation']} {one['count']}"
            fingerprint = f"{zlib.crc32(text.encode()):016x}"
        kept = {"sequence": sequence, "number": counts[key], "fingerprint": fingerprint}
        numbered.append({**one, **kept})
    return {
        "id": "a" * 16,
        "joined": None,
        "parent": None,
        "name": None,
        "creator": "ncclCommInitRankConfig",
        "rank": rank,
        "nranks": nranks,
        "device": 0,
        "timeout": 1800,
        "failure": None,
        "calls": [],
        "collectives": counts["", None],
        "records": numbered[lost:],
        **fields,
    }


def dump_json(rank: int | None, *communicators: dict[str, Any], **fields: object) -> str:
    """The text of a process's dump."""
    return json.dumps(
        {
            "format": "pynccl flight record",
            "version": 1,
            "reason": "SIGUSR2",
            "host": "node0",
            "pid": 1000 + (rank or 0),
            "rank": rank,
            "time_ns": NOW,
            "communicators": communicators,
            **fields,
        }
    )


def dump(rank: int | None, *communicators: dict[str, Any], **fields: object) -> Dump:
    """The parsed dump of a process."""
    return parse(dump_json(rank, *communicators, **fields), f"flight_{rank}")
