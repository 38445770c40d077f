"""Lossless JSON for traces: objects of columns and rows, with checked types."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

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

__all__ = ["communicator", "from_json", "to_json"]

_T = TypeVar("_T")
_TABLES: dict[str, type[Any]] = {
    "communicators": Communicator,
    "operations": Operation,
    "waits": Wait,
    "ranges": Range,
    "launches": GraphLaunch,
    "runs": Operation,
}
_MOST_RANKS = 1 << 20  # a larger value cannot be a number of ranks


def to_json(trace: ProcessTrace) -> dict[str, Any]:
    """Convert a trace to a JSON object."""
    result: dict[str, Any] = dict(vars(trace))
    for name, cls in _TABLES.items():
        rows = result[name].values() if isinstance(result[name], dict) else result[name]
        columns = [field.name for field in dataclasses.fields(cls)]
        result[name] = {
            "columns": columns,
            "rows": [[getattr(row, column) for column in columns] for row in rows],
        }
    return result


def from_json(value: object) -> ProcessTrace:
    """Restore a trace from to_json(). Unknown members and columns are ignored.

    Raises:
        TraceError, FieldError: the value is not a trace.
    """
    if not isinstance(value, dict):
        raise TraceError(f"{value!r:.60} is not an object")
    tables: dict[str, Any] = {
        name: _table(name, cls, value.get(name)) for name, cls in _TABLES.items()
    }
    members = map(_in_range, tables["communicators"])
    tables["communicators"] = {(one.id, one.rank): one for one in members}
    return build(ProcessTrace, value, **tables)


def communicator(values: dict[str, Any]) -> Communicator:
    """Build a communicator from unchecked values.

    Raises:
        TraceError, FieldError: a value is missing, has the wrong type, or is out of range.
    """
    return _in_range(build(Communicator, values))


def _in_range(one: Communicator) -> Communicator:
    if not 0 <= one.rank < one.nranks <= _MOST_RANKS:
        raise TraceError(f"communicator {one.id}: rank {one.rank} of {one.nranks}")
    return one


def _table(name: str, cls: type[_T], value: object) -> list[_T]:
    columns, rows = (
        value.get(key) if isinstance(value, dict) else None for key in ("columns", "rows")
    )
    if not isinstance(columns, list) or not isinstance(rows, list):
        raise TraceError(f"{name} is not a table of columns and rows")
    result = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise TraceError(f"{name}: row {number} does not have {len(columns)} values")
        try:
            result.append(build(cls, dict(zip(columns, row, strict=True))))
        except (FieldError, TypeError) as error:  # TypeError: a column is named by a list
            raise TraceError(f"{name}: row {number}: {error}") from None
    return result
