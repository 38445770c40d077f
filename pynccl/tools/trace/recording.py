"""Decodes recordings: the files of PYNCCL_RECORD, and the library's data of a trace.

A recording is the line ``pynccl trace 1`` followed by blocks. A block is a letter in four bytes,
its size in bytes as a 32-bit number, and its contents: ``H``: the process, as JSON; ``C``: a
communicator, as JSON; ``N``: a name, numbered from 0; ``E``: entries of 128 bytes; ``Z``: the end,
as JSON. Numbers are little-endian. If the process was killed, the last block may be missing or
incomplete.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pynccl._internal.typed_json import FieldError, build
from pynccl.tools.trace.model import (
    Communicator,
    GraphLaunch,
    Operation,
    ProcessTrace,
    Range,
    TraceError,
    Wait,
)
from pynccl.tools.trace.shape import ITEMSIZES, ROOTED, blocks

__all__ = ["MAGIC", "parse"]

MAGIC = b"pynccl trace 1\n"
_BLOCK = struct.Struct("<c3xI")
_ENTRY = struct.Struct("<4B I i I I I 4q 7Q Q 2i")
_WAITS = ("work", "stream", "event", "stream_event")


class _Entry(NamedTuple):
    """An entry as csrc/watch/trace_entry.h declares it."""

    type: int
    kind: int
    dtype: int
    flags: int
    communicator: int
    root_or_peer: int
    op: int
    thread: int
    group: int
    called: int
    returned: int
    began: int
    ended: int
    sequence: int
    number: int
    elements: int
    sendbuff: int
    recvbuff: int
    stream: int
    graph: int
    offset: int
    signal: int
    context: int

    @property
    def failed(self) -> bool:
        return bool(self.flags & 1)

    @property
    def on_device(self) -> bool:
        return bool(self.flags & 4)

    @property
    def compute(self) -> bool:
        return bool(self.flags & 8)


_OPERATION, _GROUP_END, _LAUNCH, _WAIT = 0, 1, 3, 4
_RANGE_BEGIN, _RANGE_END, _FAILURE, _RUN = 5, 6, 7, 10


@dataclass
class _Contents:
    """The blocks of a recording."""

    header: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    communicators: dict[int, Communicator] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)


def parse(data: bytes) -> ProcessTrace:
    """Decode the bytes of a recording.

    Args:
        data: all bytes of the file.

    Returns:
        The recording.

    Raises:
        TraceError: data is not a recording, or has another version.
    """
    if not data.startswith(MAGIC):
        raise TraceError(f"it has no {MAGIC[:-1].decode()!r}")
    try:
        return _process_trace(_contents(data))
    except (TraceError, FieldError) as error:
        raise TraceError(str(error)) from None
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise TraceError(f"{error!r}") from None


def _blocks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """The complete blocks, and of an incomplete last block of entries those that are complete."""
    view = memoryview(data)
    offset = len(MAGIC)
    while offset + _BLOCK.size <= len(data):
        kind, size = _BLOCK.unpack_from(data, offset)
        offset += _BLOCK.size
        contents = view[offset : offset + size]
        offset += size
        if len(contents) == size or kind == b"E":
            yield kind, contents


def _contents(data: bytes) -> _Contents:
    contents = _Contents()
    for kind, block in _blocks(data):
        if kind == b"E":
            complete = block[: len(block) // _ENTRY.size * _ENTRY.size]
            contents.entries += map(_Entry._make, _ENTRY.iter_unpack(complete))
        elif kind == b"C":
            values = _object(block)
            contents.communicators[values["number"]] = build(Communicator, values)
        elif kind == b"N":
            contents.names.append(bytes(block).decode())
        elif kind == b"H":
            contents.header = _object(block)
        elif kind == b"Z":
            contents.end = _object(block)
        else:
            raise TraceError(f"it has a block {kind!r}")
    if contents.header.get("version") != 1:
        raise TraceError(f"its version is {contents.header.get('version')!r}; pynccl reads 1")
    return contents


def _object(block: memoryview) -> dict[str, Any]:
    value = json.loads(bytes(block))
    if not isinstance(value, dict):
        raise TraceError(f"{value!r:.60} is not an object")
    return value


def _process_trace(contents: _Contents) -> ProcessTrace:
    header, end = contents.header, contents.end
    operations = [entry for entry in contents.entries if entry.type == _OPERATION]
    last = max((entry.called for entry in contents.entries), default=header["began"])
    rank = end.get("rank", header["rank"])
    own = {"rank": rank, "ended": end.get("ended", last), "dropped": end.get("dropped", 0)}
    trace = build(ProcessTrace, header | own)
    for names in ("kinds", "dtypes", "ops"):
        if not all(isinstance(name, str) for name in header[names]):
            raise TraceError(f"{names}: {header[names]!r:.60} are not names")
    used = {entry.communicator for entry in contents.entries if entry.communicator}
    for number in sorted(used):
        communicator = contents.communicators[number]
        trace.communicators[communicator.id, communicator.rank] = communicator
    if rank is None and trace.communicators:
        trace.rank = max(trace.communicators.values(), key=lambda one: one.nranks).rank
    trace.operations = _operations(operations, contents)
    trace.waits = [_wait(entry, contents) for entry in contents.entries if entry.type == _WAIT]
    trace.ranges = _ranges(contents)
    trace.launches = [_launch(entry) for entry in contents.entries if entry.type == _LAUNCH]
    trace.runs = [
        replace(_operation(entry, entry, contents, timed=True), returned=None)
        for entry in contents.entries
        if entry.type == _RUN
    ]
    return trace


def _operations(entries: list[_Entry], contents: _Contents) -> list[Operation]:
    """All operations; those of groups have the times of their group."""
    timed = contents.header["timed"]
    ends = {(e.group, e.stream): e for e in contents.entries if e.type == _GROUP_END}
    any_end = {e.group: e for e in contents.entries if e.type == _GROUP_END}
    failures = {(e.communicator, e.sequence) for e in contents.entries if e.type == _FAILURE}
    operations: list[tuple[int, Operation]] = []
    latest: dict[int, int] = {}
    for entry in entries:
        times = entry
        if (entry.communicator, entry.sequence) in failures:
            times = entry._replace(flags=entry.flags | 1)
        if entry.group:
            end = ends.get((entry.group, entry.stream)) or any_end.get(entry.group)
            times = end or entry._replace(flags=entry.flags | 1)
        operation = _operation(entry, times, contents, timed=timed)
        # By the time of the call, in the order of each thread.
        latest[entry.thread] = max(latest.get(entry.thread, 0), entry.called)
        operations.append((latest[entry.thread], operation))
    operations.sort(key=lambda pair: pair[0])
    return [operation for _, operation in operations]


def _operation(entry: _Entry, times: _Entry, contents: _Contents, *, timed: bool) -> Operation:
    header = contents.header
    communicator = contents.communicators[entry.communicator]
    kind: str = header["kinds"][entry.kind]
    reduces = kind in ("all_reduce", "reduce", "reduce_scatter")
    ops: list[str] = header["ops"]
    dtype: str = header["dtypes"][entry.dtype]
    began, ended = times.began or None, times.ended or None
    if timed and not entry.on_device:  # the call returned when the operation was done
        began, ended = times.called, times.returned or None
    if entry.graph and entry.type != _RUN:
        began = ended = None
    operation = Operation(
        kind=kind,
        communicator=communicator.id,
        sequence=entry.sequence,
        number=entry.number or None,
        dtype=dtype,
        count=entry.elements,
        op=(ops[entry.op] if entry.op < len(ops) else "user-defined") if reduces else None,
        root=entry.root_or_peer if kind in ROOTED else None,
        peer=entry.root_or_peer if kind in ("send", "recv", "put_signal", "signal") else None,
        sendbuff=0 if kind == "wait_signal" else entry.sendbuff,
        recvbuff=0 if kind == "put_signal" else entry.recvbuff,
        stream=entry.stream,
        thread=entry.thread,
        group=entry.group or None,
        graph=entry.graph or None,
        called=entry.called,
        returned=(times.returned or None) if timed else None,
        began=began,
        ended=ended,
        failed=times.failed,
        sendbytes=0,
        recvbytes=0,
        rank=communicator.rank,
        window=entry.recvbuff if kind == "put_signal" else None,
        offset=entry.offset if kind == "put_signal" else None,
        signal=entry.signal if kind in ("put_signal", "signal") else None,
        context=entry.context if kind in ("put_signal", "signal") else None,
    )
    shape = blocks(kind, communicator.nranks, communicator.rank, operation.root)
    size = operation.count * ITEMSIZES[dtype]
    return replace(operation, sendbytes=shape.sent * size, recvbytes=shape.received * size)


def _wait(entry: _Entry, contents: _Contents) -> Wait:
    communicator = contents.communicators.get(entry.communicator)
    return Wait(
        what=_WAITS[entry.kind],
        communicator=communicator.id if communicator else None,
        sequence=entry.sequence or None,
        rank=communicator.rank if communicator else None,
        stream=entry.stream,
        thread=entry.thread,
        on_device=entry.on_device,
        began=(entry.began or entry.called) if entry.on_device else entry.called,
        ended=(entry.ended or None) if entry.on_device else entry.returned,
        called=entry.called,
        event_stream=entry.recvbuff if entry.number else None,
        event_recorded=entry.number or None,
    )


def _ranges(contents: _Contents) -> list[Range]:
    ends = {entry.sequence: entry for entry in contents.entries if entry.type == _RANGE_END}
    return [
        _range(entry, ends.get(entry.sequence), contents.names[entry.elements])
        for entry in contents.entries
        if entry.type == _RANGE_BEGIN
    ]


def _range(entry: _Entry, end: _Entry | None, name: str) -> Range:
    on_device = entry.on_device
    ended = None
    if end is not None:
        ended = (end.began or None) if on_device else end.called
    return Range(
        name=name,
        compute=entry.compute,
        stream=entry.stream if on_device else None,
        thread=entry.thread,
        began=(entry.began if on_device else 0) or entry.called,
        ended=ended,
    )


def _launch(entry: _Entry) -> GraphLaunch:
    began, ended = entry.began or None, entry.ended or None
    if not entry.on_device:
        began, ended = entry.called, entry.returned
    return GraphLaunch(
        graph=entry.graph,
        stream=entry.stream,
        thread=entry.thread,
        called=entry.called,
        returned=entry.returned,
        began=began,
        ended=ended,
    )
