"""Lossless JSON for traces: objects of columns and rows, with checked types."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import MISSING
from typing import Any, TypeVar

from pynccl.tools.trace.errors import TraceError
from pynccl.tools.trace.model import (
    Communicator,
    GraphLaunch,
    Operation,
    ProcessTrace,
    Range,
    Signal,
    Wait,
    Window,
)

__all__ = ["checked_communicator", "checked_process", "from_json", "to_json"]

_T = TypeVar("_T")
_TABLES: dict[str, type[Any]] = {
    "communicators": Communicator,
    "operations": Operation,
    "waits": Wait,
    "ranges": Range,
    "launches": GraphLaunch,
    "windows": Window,
    "runs": Operation,
}
_Types = dict[str, tuple[type, ...]]
_MOST_RANKS = 1 << 20  # a larger value cannot be a number of ranks


def _types(cls: type[Any]) -> _Types:
    """The types that the fields of a dataclass accept, except its tables."""
    result = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if field.name in _TABLES and cls is ProcessTrace:
            continue
        if isinstance(hint, types.UnionType):
            result[field.name] = typing.get_args(hint)
        else:
            result[field.name] = (list,) if typing.get_origin(hint) is tuple else (hint,)
    return result


_COLUMNS: dict[str, _Types] = {name: _types(cls) for name, cls in _TABLES.items()}
_LATER = ("windows", "runs")  # tables that early files lack
_OPTIONAL = {  # columns that early files lack
    name: {field.name for field in dataclasses.fields(cls) if field.default is not MISSING}
    for name, cls in _TABLES.items()
}
_FIELDS = _types(ProcessTrace)


def to_json(trace: ProcessTrace) -> dict[str, Any]:
    """Convert a trace to a JSON object."""
    result: dict[str, Any] = {name: getattr(trace, name) for name in _FIELDS}
    for name, columns in _COLUMNS.items():
        rows = getattr(trace, name)
        rows = rows.values() if isinstance(rows, dict) else rows
        result[name] = {
            "columns": list(columns),
            "rows": [[getattr(row, column) for column in columns] for row in rows],
        }
    return result


def from_json(value: object) -> ProcessTrace:
    """Restore a trace from to_json(). Unknown members and columns are ignored.

    Raises:
        TraceError: the value is not a trace.
    """
    if not isinstance(value, dict):
        raise TraceError(f"{_short(value)} is not an object")
    fields: dict[str, Any] = {}
    for name, accepted in _FIELDS.items():
        if name not in value:
            raise TraceError(f"{name} is missing")
        fields[name] = _checked(name, value[name], accepted)
    for name, cls in _TABLES.items():
        absent = None if name not in _LATER else {"columns": list(_COLUMNS[name]), "rows": []}
        fields[name] = _table(name, cls, value.get(name, absent))
    members = map(_in_range, fields["communicators"])
    fields["communicators"] = {(one.id, one.rank): one for one in members}
    return ProcessTrace(**fields)


def checked_process(values: dict[str, Any]) -> ProcessTrace:
    """Build a trace without tables from unchecked values.

    Raises:
        TraceError: a value is missing or has the wrong type.
    """
    return ProcessTrace(**_fields("the process", values, _FIELDS))


def checked_communicator(values: dict[str, Any]) -> Communicator:
    """Build a communicator from unchecked values.

    Raises:
        TraceError: a value is missing or has the wrong type.
    """
    return _in_range(Communicator(**_fields("a communicator", values, _COLUMNS["communicators"])))


def _in_range(one: Communicator) -> Communicator:
    if not 0 <= one.rank < one.nranks <= _MOST_RANKS:
        raise TraceError(f"communicator {one.id}: rank {one.rank} of {one.nranks}")
    return one


def _fields(name: str, values: dict[str, Any], types_: _Types) -> dict[str, Any]:
    missing = [field for field in types_ if field not in values]
    if missing:
        raise TraceError(f"{name}: {missing[0]} is missing")
    return {
        field: _checked(f"{name}: {field}", values[field], accepted)
        for field, accepted in types_.items()
    }


def _table(name: str, cls: type[_T], value: object) -> list[_T]:
    columns, rows = _members(name, value)
    known = [column for column in _COLUMNS[name] if column in columns]
    missing = [column for column in _COLUMNS[name] if column not in [*known, *_OPTIONAL[name]]]
    if missing:
        raise TraceError(f"{name}: the column {missing[0]} is missing")
    places = [(columns.index(column), column) for column in known]
    types_ = [_COLUMNS[name][column] for _, column in places]
    result = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise TraceError(f"{name}: row {number} does not have {len(columns)} values")
        values = [row[place] for place, _ in places]
        for (_, column), one, accepted in zip(places, values, types_, strict=True):
            if type(one) not in accepted:  # a fast path around _checked() for the usual case
                _checked(f"{name}: row {number}: {column}", one, accepted)
        members = dict(zip(known, values, strict=True))
        if members.get("signals"):
            members["signals"] = _signals(f"{name}: row {number}", members["signals"])
        elif "signals" in members:
            members["signals"] = ()
        result.append(cls(**members))
    return result


def _signals(name: str, value: list[Any]) -> tuple[Signal, ...]:
    """The signals of an operation, each a list of its members."""
    for one in value:
        if not isinstance(one, list) or [type(member) for member in one] != [int] * 4:
            raise TraceError(f"{name}: signals: {_short(one)} is not a list of 4 numbers")
    return tuple(Signal(*one) for one in value)


def _members(name: str, value: object) -> tuple[list[Any], list[Any]]:
    members = [value.get(key) if isinstance(value, dict) else None for key in ("columns", "rows")]
    if not all(isinstance(one, list) for one in members):
        raise TraceError(f"{name} is not a table of columns and rows")
    return members[0] or [], members[1] or []


def _checked(name: str, value: object, accepted: tuple[type, ...]) -> object:
    if type(value) not in accepted:  # bool is an int, but is not accepted as one
        names = [one.__name__ for one in accepted if one is not type(None)]
        raise TraceError(f"{name}: {_short(value)} is not of type {' or '.join(names)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
