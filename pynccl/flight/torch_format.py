"""Conversion of dumps to the format of torch's FlightRecorder, for ``torchfrtrace``.

torch writes one file per process, and identifies the ranks of a process group by their processes.
Its reader matches collectives by their number in the group. It matches messages only in groups
whose members all take part, so each direction between two ranks becomes a separate group.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from pynccl import _C
from pynccl.flight.dump import Dump, DumpError, Record, parse
from pynccl.flight.merged import Merged, merge

__all__ = ["convert", "write", "write_own"]

_VERSION = "2.10"  # the version of torch's format

# The names of c10's ScalarType.
_DTYPES = {
    "int8": "Char",
    "uint8": "Byte",
    "int32": "Int",
    "uint32": "UInt32",
    "int64": "Long",
    "uint64": "UInt64",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "float8_e4m3": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}
# torch's name, and whether the input and the output consist of one block of ``count`` per rank.
_COLLECTIVES = {
    "all_reduce": ("all_reduce", False, False),
    "broadcast": ("broadcast", False, False),
    "reduce": ("reduce", False, False),
    "all_gather": ("_all_gather_base", False, True),
    "reduce_scatter": ("_reduce_scatter_base", True, False),
    "all_to_all": ("all_to_all", True, True),
    "gather": ("gather", False, True),
    "scatter": ("scatter", True, False),
}
_STATES = {
    "called": "scheduled",
    "issued": "started",
    "captured": "scheduled",
    "failed": "started",
    "done": "completed",
}


def write(dumps: Sequence[Dump], prefix: str) -> list[str]:
    """Write one file per rank, named by the prefix and the rank, and return their paths.

    Raises:
        DumpError: the files do not belong together.
        OSError: a file cannot be written.
    """
    paths = []
    for rank, content in convert(dumps).items():
        paths.append(f"{prefix}{rank}")
        _C.write_new_file(paths[-1], pickle.dumps(content))
    return paths


def write_own(text: str, path: str) -> None:
    """Write the file of this process from its dump; if it has several ranks, of the lowest rank.

    Raises:
        DumpError: the process has no communicator.
        OSError: the file cannot be written.
    """
    content = next(iter(convert([parse(text, path)]).values()))
    _C.write_new_file(path, pickle.dumps(content))


def convert(dumps: Sequence[Dump]) -> dict[int, dict[str, Any]]:
    """Return the data that torch's FlightRecorder would pickle on each rank.

    Raises:
        DumpError: the files do not belong together.
    """
    merged = merge(dumps)
    contents: dict[int, dict[str, Any]] = {}
    for one, ranks in zip(merged, _process_numbers(merged), strict=True):
        for rank, added in _entries(one, ranks).items():
            own = contents.setdefault(
                rank,
                {
                    "version": _VERSION,
                    "comm_lib_version": "",
                    "entries": [],
                    "pg_config": {},
                    "pg_status": {},
                    "nccl_comm_state": {},
                },
            )
            own["entries"] += added.entries
            own["pg_config"] |= added.groups
    for content in contents.values():
        content["entries"].sort(key=lambda entry: entry["time_created_ns"])
        for number, entry in enumerate(content["entries"]):
            entry["record_id"] = entry["op_id"] = number
    if not contents:
        raise DumpError("there is no communicator in these files")
    return dict(sorted(contents.items()))


def _process_numbers(merged: Sequence[Merged]) -> list[list[int]]:
    """Torch's rank of each process: its own rank, or else its rank in the largest communicator.

    A process with several ranks of one communicator counts as several processes. A rank without a
    file receives a free number, preferably its own rank in the largest communicator.

    Returns:
        The numbers of the ranks of each communicator.
    """
    if any(len({id(member.dump) for member in one}) < len(one.members) for one in merged):
        return [list(range(one.nranks)) for one in merged]
    dumps = {id(member.dump): member.dump for one in merged for member in one}
    numbers = {key: dump.rank for key, dump in dumps.items() if dump.rank is not None}
    if len(set(numbers.values())) < len(dumps):
        numbers = {}
        for one in merged:
            for rank, member in one.members.items():
                numbers.setdefault(id(member.dump), _free(rank, set(numbers.values())))
    found = []
    for one in merged:
        taken, own = set(numbers.values()), []
        for rank in range(one.nranks):
            known = one.members.get(rank)
            own.append(numbers[id(known.dump)] if known else _free(rank, taken))
            taken.add(own[-1])
        found.append(own)
    return found


def _free(wanted: int, taken: set[int]) -> int:
    return (
        wanted if wanted not in taken else next(n for n in range(len(taken) + 1) if n not in taken)
    )


class _Content:
    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.groups: dict[str, dict[str, str]] = {}


def _entries(one: Merged, ranks: list[int]) -> dict[int, _Content]:
    """Return the entries and groups of a communicator by rank of the process."""
    contents = {ranks[rank]: _Content() for rank in one.members}
    desc = one.name or "undefined"
    # Records that only some ranks still have would look like calls missing on the others.
    first = max((member.first_collective for member in one), default=1)
    for rank, member in one.members.items():
        content = contents[ranks[rank]]
        content.groups[one.id] = {"name": one.id, "desc": desc, "ranks": str(sorted(ranks))}
        content.entries += [
            _entry(record, one.id, desc, _collective(record, one.nranks))
            for number, record in member.collectives.items()
            if number >= first
        ]
    for source in one.members:
        for target in one.members:
            if source != target:
                _add_messages(one, ranks, source, target, contents)
    return contents


def _add_messages(
    one: Merged, ranks: list[int], source: int, target: int, contents: dict[int, _Content]
) -> None:
    members = [ranks[source], ranks[target]]
    records = {
        source: one.members[source].messages("send", target),
        target: one.members[target].messages("recv", source),
    }
    if not any(records.values()):
        return
    name = f"{one.id}:{source}->{target}"
    kept = [min(own) for r, own in records.items() if own and not one.members[r].complete]
    first = max(kept, default=1)  # the first that both still have
    ends = [sorted(members).index(number) for number in members]  # as torch counts in the group
    for rank, own in records.items():
        content = contents[ranks[rank]]
        content.groups[name] = {"name": name, "desc": "messages", "ranks": str(sorted(members))}
        arrow = f"send {ends[0]}->{ends[1]}" if rank == source else f"recv {ends[1]}<-{ends[0]}"
        content.entries += [
            _entry(record, name, "messages", (arrow, record.count, record.count))
            for number, record in own.items()
            if number >= first
        ]


def _collective(record: Record, nranks: int) -> tuple[str, int, int]:
    name, spread, gathered = _COLLECTIVES.get(record.operation, (record.operation, False, False))
    return (
        name,
        record.count * (nranks if spread else 1),
        record.count * (nranks if gathered else 1),
    )


def _entry(record: Record, group: str, desc: str, call: tuple[str, int, int]) -> dict[str, Any]:
    name, input_size, output_size = call
    dtypes = [_DTYPES.get(record.dtype, record.dtype)]
    return {
        "pg_id": 0,
        "process_group": (group, desc),
        "collective_seq_id": record.number,
        "p2p_seq_id": record.number if record.is_message else 0,
        "is_p2p": record.is_message,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": record.time_created_ns,
        "input_sizes": [[input_size]],
        "input_dtypes": dtypes,
        "output_sizes": [[output_size]],
        "output_dtypes": dtypes,
        "state": _STATES.get(record.state, record.state),
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": record.state == "done",
        "timeout_ms": 0,
        "frames": [],
    }
