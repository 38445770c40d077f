"""A dump of one process, as ``csrc/core/flight_dump.cpp`` writes it, with checked types."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Call", "Communicator", "Dump", "DumpError", "Record", "load", "parse"]

_FORMAT = "pynccl flight record"
_VERSION = 1
_T = TypeVar("_T")


class DumpError(ValueError):
    """A file is not a complete dump, or files do not belong together."""


@dataclass(frozen=True)
class Record:
    """An operation; the fields are those of :class:`pynccl.nccl.FlightRecord`.

    Attributes:
        sequence: its number among all operations of this rank.
        operation: its name, as "all_reduce".
        number: a collective's among the collectives, a message's among those of its direction.
        dtype: of the elements.
        count: how many elements.
        op: the reduction operator, where it has one.
        root: of a rooted collective.
        peer: of a send, a receive or a one-sided operation.
        state: "called", "issued", "captured", "done" or "failed".
        time_created_ns: when it was called, in nanoseconds since 1970.
        stream: its handle.
        fingerprint: of the collectives up to this one, equal on ranks that have called the same.
    """

    sequence: int
    operation: str
    number: int | None
    dtype: str
    count: int
    op: str | None
    root: int | None
    peer: int | None
    state: str
    time_created_ns: int
    stream: str
    fingerprint: str

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.operation in ("send", "recv")

    @property
    def is_collective(self) -> bool:
        """Whether all ranks take part."""
        return self.peer is None and self.operation != "wait_signal"

    @property
    def is_open(self) -> bool:
        """Whether it had not ended."""
        return self.state in ("called", "issued")

    @property
    def arguments(self) -> str:
        """What follows the name: "(float32, count=4, sum)"."""
        signals = self.operation in ("signal", "wait_signal")
        parts = [] if signals else [self.dtype, f"count={self.count}"]
        parts += [self.op] if self.op is not None else []
        parts += [f"root={self.root}"] if self.root is not None else []
        parts += [f"peer={self.peer}"] if self.peer is not None else []
        return f"({', '.join(parts)})"

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be equal on all ranks of a collective."""
        return self.operation, self.dtype, self.count, self.op, self.root


@dataclass(frozen=True)
class Call:
    """A call that had not returned, of a function that is no operation.

    Attributes:
        function: its name.
        time_created_ns: when it was called, in nanoseconds since 1970.
    """

    function: str
    time_created_ns: int


@dataclass(frozen=True)
class Communicator:
    """What one rank of a communicator has recorded.

    Attributes:
        id: equal on all ranks.
        joined: after grow() the id on the ranks that have joined, on the rank that knows it.
        parent: the id of the communicator that it was made from.
        name: comm_name, or that of the process group.
        creator: the function that made it.
        rank: of this process; None while the communicator is not ready.
        nranks: how many ranks it has; None while it is not ready.
        device: the GPU; None while it is not ready.
        timeout: the time limit of operations in seconds; None without one.
        failure: the text of the first failure.
        calls: those that had not returned.
        collectives: how many were called.
        records: the last operations, oldest first.
    """

    id: str
    joined: str | None
    parent: str | None
    name: str | None
    creator: str
    rank: int | None
    nranks: int | None
    device: int | None
    timeout: float | None
    failure: str | None
    calls: list[Call]
    collectives: int
    records: list[Record]


@dataclass(frozen=True)
class Dump:
    """The dump of a process.

    Attributes:
        path: of the file.
        reason: why it was written.
        host: the name of the machine.
        pid: of the process.
        rank: of the process (RANK, or of the default process group), where it has one.
        time_ns: when it was written, in nanoseconds since 1970.
        communicators: those that were open.
    """

    path: str
    reason: str
    host: str
    pid: int
    rank: int | None
    time_ns: int
    communicators: list[Communicator]

    def seconds_since(self, time_ns: int) -> float:
        """How long before the dump something happened.

        Args:
            time_ns: when, in nanoseconds since 1970.

        Returns:
            Seconds, 0 at least.
        """
        return max(self.time_ns - time_ns, 0) / 1e9


def load(path: str) -> Dump:
    """Read a file of nccl.dump_flight_record() or PYNCCL_FLIGHT_FILE.

    Args:
        path: the file.

    Returns:
        The dump.

    Raises:
        DumpError: it is not a complete dump.
        OSError: it cannot be read.
    """
    try:
        text = Path(path).read_text()
    except UnicodeDecodeError:
        raise DumpError(f"{path}: this is not a flight record of pynccl, which is text") from None
    return parse(text, path)


def parse(text: str, path: str) -> Dump:
    """The same for the text of a file.

    Args:
        text: all of it.
        path: its name, for :attr:`Dump.path` and the errors.

    Returns:
        The dump.

    Raises:
        DumpError: it is not a complete dump.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "it is empty" if not text.strip() else f"it is truncated, or not JSON: {error}"
        raise DumpError(f"{path}: this is not a flight record of pynccl: {what}") from None
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise DumpError(f"{path}: this is not a flight record of pynccl: it has no {_FORMAT!r}")
    if value.get("version") != _VERSION:
        raise DumpError(
            f"{path}: its version is {value.get('version')!r}; this pynccl reads {_VERSION}"
        )
    try:
        return _object(Dump, value | {"path": path})
    except _FieldError as error:
        raise DumpError(f"{path}: this is not a flight record of pynccl: {error}") from None


class _FieldError(ValueError):
    pass


def _object(cls: type[_T], value: object) -> _T:
    """An instance of a dataclass from an object of JSON, whose other members are ignored."""
    if not isinstance(value, dict):
        raise _FieldError(f"{value!r} is not an object")
    hints = typing.get_type_hints(cls)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name not in value:
            raise _FieldError(f"{field.name} is missing")
        try:
            fields[field.name] = _converted(hints[field.name], value[field.name])
        except _FieldError as error:
            raise _FieldError(f"{field.name}: {error}") from None
    return cls(**fields)


def _converted(hint: Any, value: object) -> object:  # noqa: ANN401 - of the typing module
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is list:
        if not isinstance(value, list):
            raise _FieldError(f"{value!r} is not a list")
        return [_converted(typing.get_args(hint)[0], one) for one in value]
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast("Callable[..., Any]", hint), value)  # type: ignore[arg-type]
    accepted = (int, float) if hint is float else hint
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise _FieldError(f"{value!r} is not of type {hint.__name__}")
    return value
