"""Traces as JSON with nothing lost: objects of columns and rows, with checked types."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

from pynccl.trace.errors import TraceError
from pynccl.trace.model import (
    Communicator,
    GraphLaunch,
    Operation,
    ProcessTrace,
    Range,
    Wait,
)

__all__ = ["from_json", "to_json"]

_T = TypeVar("_T")
_TABLES: dict[str, type[Any]] = {
    "communicators": Communicator,
    "operations": Operation,
    "waits": Wait,
    "ranges": Range,
    "launches": GraphLaunch,
}
_Types = dict[str, tuple[type, ...]]


def _types(cls: type[Any]) -> _Types:
    """The types that the fields of a dataclass accept; those of its tables are left out."""
    result = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if field.name in _TABLES and cls is ProcessTrace:
            continue
        result[field.name] = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return result


_COLUMNS: dict[str, _Types] = {name: _types(cls) for name, cls in _TABLES.items()}
_FIELDS = _types(ProcessTrace)


def to_json(trace: ProcessTrace) -> dict[str, Any]:
    """A trace as an object of JSON."""
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
    """The same trace again. Members and columns that this version does not know are ignored.

    Raises:
        TraceError: it is not an object that to_json() has made.
    """
    if not isinstance(value, dict):
        raise TraceError(f"{_short(value)} is not an object")
    fields: dict[str, Any] = {}
    for name, accepted in _FIELDS.items():
        if name not in value:
            raise TraceError(f"{name} is missing")
        fields[name] = _checked(name, value[name], accepted)
    for name, cls in _TABLES.items():
        fields[name] = _table(name, cls, value.get(name))
    fields["communicators"] = {one.id: one for one in fields["communicators"]}
    return ProcessTrace(**fields)


def _table(name: str, cls: type[_T], value: object) -> list[_T]:
    columns, rows = _members(name, value)
    missing = [column for column in _COLUMNS[name] if column not in columns]
    if missing:
        raise TraceError(f"{name}: the column {missing[0]} is missing")
    places = [(columns.index(column), column) for column in _COLUMNS[name]]
    types_ = [_COLUMNS[name][column] for _, column in places]
    result = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise TraceError(f"{name}: row {number} does not have {len(columns)} values")
        values = [row[place] for place, _ in places]
        for (_, column), one, accepted in zip(places, values, types_, strict=True):
            if type(one) not in accepted:  # faster than _checked(), of which it is the usual case
                _checked(f"{name}: row {number}: {column}", one, accepted)
        result.append(cls(*values))
    return result


def _members(name: str, value: object) -> tuple[list[Any], list[Any]]:
    members = [value.get(key) if isinstance(value, dict) else None for key in ("columns", "rows")]
    if not all(isinstance(one, list) for one in members):
        raise TraceError(f"{name} is not a table of columns and rows")
    return members[0] or [], members[1] or []


def _checked(name: str, value: object, accepted: tuple[type, ...]) -> object:
    if type(value) not in accepted:  # bool is an int, and not accepted as one
        names = [one.__name__ for one in accepted if one is not type(None)]
        raise TraceError(f"{name}: {_short(value)} is not of type {' or '.join(names)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
