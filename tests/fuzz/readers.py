"""Fuzz targets for the readers of untrusted bytes: recordings, traces, flight dumps, messages of
pynccl.weights, and responses of NCCL's RAS service.

A target takes bytes. It raises an exception unless the reader accepts them or rejects them with its
own error. mutate() changes an input according to its structure. tests.fuzz.with_atheris uses both,
and so does a test with the same inputs in every run.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pynccl.flight import ras
from pynccl.flight.analysis import analyse
from pynccl.flight.dump import DumpError
from pynccl.flight.dump import parse as parse_dump
from pynccl.tools import ras as ras_command
from pynccl.tools.replay.check import check as compare
from pynccl.tools.replay.compiler import compile_programs
from pynccl.tools.replay.recorded import ReplayError, gather
from pynccl.tools.trace import chrome, recording
from pynccl.tools.trace.merge import merge
from pynccl.tools.trace.model import ProcessTrace, TraceError
from pynccl.tools.trace.order import check
from pynccl.tools.trace.summary import summarise
from pynccl.weights import messages
from pynccl.weights.messages import FROM_LEADER, FROM_RECEIVERS, FROM_SENDERS, HELLOS

__all__ = ["MESSAGES", "TARGETS", "mutate"]

_MAGIC = b"pynccl trace 1\n"
_BLOCK = struct.Struct("<c3xI")
_ENTRY = 128


def _summarise(traces: Sequence[ProcessTrace]) -> None:
    """``pynccl trace show``, ``check`` and ``merge``."""
    summarise(merge(traces)).text()
    for trace in traces:
        for conflict in check(trace):
            conflict.text()
    json.dumps(chrome.document(traces))


def _prepare(traces: Sequence[ProcessTrace]) -> None:
    """``pynccl replay`` up to the start of its processes."""
    recorded = gather(traces)
    for finding in compare(recorded):
        str(finding.text)
    # A program lists the memory in the recording, but nothing is allocated here.
    compile_programs(recorded, provider="host", scale=1.0)


def _of_traces(read: Callable[[bytes], list[ProcessTrace]]) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        try:
            traces = read(data)
        except TraceError:
            return
        for use in (_summarise, _prepare):
            with contextlib.suppress(TraceError, ReplayError):
                use(copy.deepcopy(traces))

    return target


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""


def _dump(data: bytes) -> None:
    try:
        report = analyse([parse_dump(_text(data), "dump")])
        json.dumps(report.json())
        report.text()
    except DumpError:
        pass


MESSAGES = {**HELLOS, **FROM_SENDERS, **FROM_RECEIVERS, **FROM_LEADER}


def _weights(data: bytes) -> None:
    try:
        message = messages.parse(data, MESSAGES)
    except messages.MessageError:
        return
    assert messages.parse(messages.encode(message), MESSAGES) == message


def _check_text(error: Exception) -> None:
    assert str(error).isprintable()


_GREETING = b"SERVER PROTOCOL 2\nOK\nOK\n"


class _Connection:
    """A socket that receives an input in pieces of random size, then end-of-file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._random = random.Random(len(data))

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def sendall(self, data: bytes) -> None:
        assert data.endswith(b"\n")

    def recv(self, size: int) -> bytes:
        now = self._random.choice((1, 16, size))
        piece, self._data = self._data[:now], self._data[now:]
        return piece


def _ras(data: bytes) -> None:
    """``pynccl ras`` and the error of an overdue operation. An input is a report or all lines."""
    if data.startswith((b"{", b"[")):
        data = _GREETING + data
    connection: Any = _Connection(data)
    session = ras._Session(connection, time.monotonic() + 60)
    try:
        greeting = session.request("CLIENT PROTOCOL 2")
        report = ras.parse(ras._state_of_job(session, greeting, 1 << 20))
    except ras.RasError as error:
        _check_text(error)
        return
    report.missing(0, 4, counted=True)
    json.dumps(ras_command._json(report))
    ras_command._text(report)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "recording": _of_traces(lambda data: [recording.parse(data)]),
    "trace": _of_traces(lambda data: chrome.parse(_text(data))),
    "dump": _dump,
    "weights": _weights,
    "ras": _ras,
}


# --- mutation of inputs

_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    7,
    1 << 16,
    1 << 31,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "x",
    "0",
    "a" * 16,
    "float32",
    "\ud800",
    "all_reduce",
    "send",
    "recv",
    "put_signal",
    "wait_signal",
    "barrier",
    "host",
    "sum",
    [],
    {},
    [[]],
    [0],
    [0, 0, 0, 0],
    {"x": 1},
    [None],
    ["x"],
)
_NUMBERS = (0, 1, 2, 3, 7, 0xFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return an input with a few changes that follow the structure of its target's inputs."""
    if rng.random() < 0.05:
        return _bytes(data, rng)
    if data.startswith(_MAGIC):
        return _recording(data, rng)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, rng)
    if rng.random() < 0.005:
        return b"[" * 200_000
    changed = _json(value, rng)
    return json.dumps(changed).encode(errors="surrogatepass")


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"{")
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[place] = rng.randrange(256)
            case 1:
                changed = changed[: place + 1]
            case _:
                changed[place:place] = changed[place : place + rng.randrange(1, 16)]
    return bytes(changed)


def _places(value: object) -> Iterable[tuple[Any, Any]]:
    """Yield every nested container with each of its keys or indices."""
    keys: Iterable[Any] = ()
    if isinstance(value, dict):
        keys = value.keys()
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])  # type: ignore[index]


def _json(value: Any, rng: random.Random) -> Any:  # noqa: ANN401
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(_VALUES)
        container, key = rng.choice(places)
        match rng.randrange(7):
            case 0:
                del container[key]
            case 1:
                container[key] = copy.deepcopy(rng.choice([a[b] for a, b in places]))
            case 2 if isinstance(container, list):
                container.insert(key, copy.deepcopy(container[key]))
            case 3 if isinstance(container[key], int):
                container[key] += rng.choice((-1, 1))
            case _:
                container[key] = copy.deepcopy(rng.choice(_VALUES))
    return value


def _recording(data: bytes, rng: random.Random) -> bytes:
    blocks = []
    offset = len(_MAGIC)
    while offset + _BLOCK.size <= len(data):
        kind, size = _BLOCK.unpack_from(data, offset)
        offset += _BLOCK.size
        blocks.append((kind, data[offset : offset + size]))
        offset += size
    if not blocks:
        return _bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = rng.randrange(len(blocks))
        kind, contents = blocks[place]
        match rng.randrange(6):
            case 0:
                del blocks[place]
                if not blocks:
                    break
            case 1:
                blocks.insert(rng.randrange(len(blocks) + 1), (kind, contents))
            case _ if kind == b"E" and len(contents) >= _ENTRY:
                blocks[place] = kind, _entries(contents, rng)
            case _ if kind in b"HCZ":
                try:
                    changed = json.dumps(_json(json.loads(contents), rng))
                    blocks[place] = kind, changed.encode(errors="surrogatepass")
                except (ValueError, RecursionError):
                    blocks[place] = kind, _bytes(contents, rng)
            case _:
                blocks[place] = kind, _bytes(contents, rng)
    parts = [_BLOCK.pack(kind, len(contents)) + contents for kind, contents in blocks]
    return _MAGIC + b"".join(parts)


def _entries(contents: bytes, rng: random.Random) -> bytes:
    """Change the value of a field of one, four or eight bytes in an entry."""
    changed = bytearray(contents)
    entry = rng.randrange(len(changed) // _ENTRY) * _ENTRY
    size = rng.choice((1, 1, 4, 4, 8, 8))
    first = {1: range(4), 4: range(4, 24, 4), 8: range(24, _ENTRY, 8)}[size]
    place = entry + rng.choice(first)
    number = rng.choice((*_NUMBERS, rng.randrange(12))) % (1 << 8 * size)
    changed[place : place + size] = number.to_bytes(size, "little")
    return bytes(changed)
