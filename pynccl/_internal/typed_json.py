"""Dataclasses from untrusted JSON: every value must have the type that its field declares."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

__all__ = ["FieldError", "build", "load_document"]

_T = TypeVar("_T")
_MOST_BITS = 512  # of an integer; sums and quotients of such ones are finite as floats


class FieldError(ValueError):
    """A value is missing or has the wrong type; the text begins with the name of the field."""


class _Field(NamedTuple):
    """A field of a dataclass.

    Attributes:
        hint: its type.
        plain: the types of JSON values that are stored unchanged.
        required: whether it has no default.
    """

    name: str
    hint: Any
    plain: tuple[type, ...]
    required: bool


@functools.cache
def _fields(cls: type[Any]) -> list[_Field]:
    hints = typing.get_type_hints(cls)
    return [
        _Field(
            field.name,
            hints[field.name],
            _plain(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    ]


def _plain(hint: Any) -> tuple[type, ...]:  # noqa: ANN401 - a type or a union of types
    if isinstance(hint, types.UnionType):
        return tuple(one for part in typing.get_args(hint) for one in _plain(part))
    if hint is float:
        return (int, float)
    return (hint,) if hint in (bool, int, str, type(None)) else ()


def load_document(text: str, form: str, version: int, member: str | None = None) -> Any:  # noqa: ANN401
    """Parse a JSON file, and return it or a member of it, which has this format and version.

    Raises:
        FieldError: the text is not JSON, or of another format or version.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "it is empty" if not text.strip() else f"it is truncated, or not JSON: {error}"
        raise FieldError(what) from None
    if member is not None:
        value = value.get(member) if isinstance(value, dict) else None
    if not isinstance(value, dict) or value.get("format") != form:
        raise FieldError(f"it has no {form!r}")
    if value.get("version") != version:
        raise FieldError(f"its version is {value.get('version')!r}; this pynccl reads {version}")
    return value


def build(cls: type[_T], value: object, **given: object) -> _T:
    """Create an instance of a dataclass from a JSON object.

    Unknown members are ignored, and a field that has a default may be missing.

    Args:
        cls: the dataclass.
        value: the object.
        **given: fields that are not read from the object.

    Raises:
        FieldError: a value is missing or has the wrong type.
    """
    if not isinstance(value, Mapping):
        raise FieldError(f"{_short(value)} is not an object")
    fields = dict(given)
    for name, hint, plain, required in _fields(cls):  # type: ignore[arg-type]
        if name in given:
            continue
        if name in value:
            one = value[name]
            # The exact type: bool is an int, but is not accepted as one.
            is_plain = type(one) in plain and not _is_too_large(one)
            fields[name] = one if is_plain else _named(name, hint, one)
        elif required:
            raise FieldError(f"{name} is missing")
    return cls(**fields)


def _named(name: str, hint: Any, value: object) -> object:  # noqa: ANN401 - the same
    try:
        return _converted(hint, value)
    except FieldError as error:
        raise FieldError(f"{name}: {error}") from None


def _converted(hint: Any, value: object) -> object:  # noqa: ANN401 - the same
    if type(value) in _plain(hint):
        if _is_too_large(value):
            raise FieldError(f"{_short(value)} exceeds {_MOST_BITS} bits")
        return value
    for part in typing.get_args(hint) if isinstance(hint, types.UnionType) else ():
        if dataclasses.is_dataclass(part) or _is_named_tuple(part):
            return _converted(part, value)
    origin = typing.get_origin(hint)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise FieldError(f"{_short(value)} is not a list")
        return origin(_converted(typing.get_args(hint)[0], one) for one in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise FieldError(f"{_short(value)} is not an object")
        return {key: _converted(typing.get_args(hint)[1], one) for key, one in value.items()}
    if dataclasses.is_dataclass(hint):
        return build(typing.cast("type[Any]", hint), value)
    if _is_named_tuple(hint):
        hints = typing.get_type_hints(hint)
        if not isinstance(value, list) or len(value) != len(hints):
            raise FieldError(f"{_short(value)} is not a list of {len(hints)} values")
        make = typing.cast("Callable[..., object]", hint)
        return make(*map(_converted, hints.values(), value))
    names = [one.__name__ for one in _plain(hint) if one is not type(None)]
    raise FieldError(f"{_short(value)} is not of type {names[-1]}")


def _is_too_large(value: object) -> bool:
    """Whether a value is an integer that would overflow as a float."""
    return type(value) is int and value.bit_length() > _MOST_BITS


def _is_named_tuple(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
