"""The messages of a session: JSON objects, each parsed once into a typed value.

The type of a field includes its codec, which checks received values and bounds their length.
Invalid data raises MessageError, and :mod:`pynccl.weights.wire` closes the connection that it came
from.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

from pynccl.weights.dtypes import size_of
from pynccl.weights.layout import MOST_DIMENSIONS, Box, Layout, Part, check_part, whole

__all__ = ["Message", "MessageError", "MessageTypes", "encode", "parse"]

_LONGEST_TEXT = 1 << 16  # characters
_MOST_MEMBERS = 1 << 16
_MOST_UNITS = 1 << 24
_MOST_BYTES = 1 << 60
_LARGEST = (1 << 63) - 1
_LARGEST_SUM = (1 << 64) - 1
_LONGEST_ID = 1 << 12  # characters
_SMALLEST_BUCKET = 1 << 12  # bytes


class MessageError(ValueError):
    """Received data is not a message, or a message that is not allowed here."""


Reader: TypeAlias = "Callable[[Any], Any]"  # of a JSON value; raises MessageError


class _Codec(NamedTuple):
    read: Reader
    write: Callable[[Any], Any] = lambda value: value


def _value(expected: str, is_valid: Callable[[Any], bool]) -> _Codec:
    """The codec of JSON values that are used unchanged."""

    def read(value: Any) -> Any:  # noqa: ANN401
        if not is_valid(value):
            raise MessageError(f"expected {expected}, got {type(value).__name__}")
        return value

    return _Codec(read)


def _integer(least: int, most: int) -> _Codec:
    def is_valid(value: Any) -> bool:  # noqa: ANN401
        return type(value) is int and least <= value <= most

    return _value(f"an integer from {least} to {most}", is_valid)


def _is_list(value: Any, kind: type, most: int = _MOST_UNITS) -> bool:  # noqa: ANN401
    # In C, since there can be as many values as a model has tensors.
    return type(value) is list and len(value) <= most and set(map(type, value)) <= {kind}


def _integers(largest: int, most: int = _MOST_UNITS) -> _Codec:
    def is_valid(value: Any) -> bool:  # noqa: ANN401
        return _is_list(value, int, most) and (
            not value or 0 <= min(value) <= max(value) <= largest
        )

    return _value(f"at most {most} integers from 0 to {largest}", is_valid)


def _are_texts(value: Any) -> bool:  # noqa: ANN401
    if not _is_list(value, str) or max(map(len, value), default=0) > _LONGEST_TEXT:
        return False
    try:
        "".join(value).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _cut(text: str) -> str:
    return text.encode(errors="replace").decode()[:_LONGEST_TEXT]


def _ids(value: Any) -> list[bytes]:  # noqa: ANN401
    if not _is_list(value, str, _MOST_MEMBERS) or not value or max(map(len, value)) > _LONGEST_ID:
        raise MessageError("expected unique ids")
    try:
        return list(map(bytes.fromhex, value))
    except ValueError:
        raise MessageError("a unique id is not hexadecimal") from None


_UNITS = _integers(_MOST_UNITS)
_SUMS = _integers(_LARGEST_SUM)
_EXTENTS = _integers(_LARGEST, MOST_DIMENSIONS)
_TEXTS = _value(f"texts of at most {_LONGEST_TEXT} characters", _are_texts)


def _sums(value: Any) -> dict[int, int]:  # noqa: ANN401
    if type(value) is not list or len(value) != 2:
        raise MessageError("expected the numbers of units and their checksums")
    numbers, values = _UNITS.read(value[0]), _SUMS.read(value[1])
    sums = dict(zip(numbers, values))  # noqa: B905 - compared below
    if not len(sums) == len(numbers) == len(values):
        raise MessageError("expected one checksum for each unit")
    return sums


def _layout(rows: Any) -> Layout:  # noqa: ANN401
    if not _is_list(rows, list) or not set(map(len, rows)) <= {4}:
        raise MessageError("expected rows of a name, a dtype, a shape and a box")
    _TEXTS.read([text for row in rows for text in row[:2]])
    layout: dict[str, Part] = {}
    for name, dtype, extents, ends in rows:
        shape = tuple(_EXTENTS.read(extents))
        box = whole(shape)
        if ends is not None:
            if type(ends) is not list or len(ends) != 2:
                raise MessageError("expected a start and a stop")
            box = Box(*(tuple(_EXTENTS.read(end)) for end in ends))
        layout[name] = part = Part(dtype, shape, box)
        try:
            check_part(name, part)
        except ValueError as error:
            raise MessageError(str(error)) from None
    if len(layout) != len(rows):
        raise MessageError("a layout repeats a name")
    return layout


def _layout_to_wire(layout: Layout) -> list[Any]:
    return [
        [name, dtype, shape, None if box == whole(shape) else [box.start, box.stop]]
        for name, (dtype, shape, box) in layout.items()
    ]


_LIST = _value("a list", lambda value: type(value) is list and len(value) <= _MOST_MEMBERS)


def _optional(codec: _Codec) -> _Codec:
    def applied(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: None if value is None else function(value)

    return _Codec(*map(applied, codec))


def _each(codec: _Codec) -> _Codec:
    return _Codec(
        lambda value: list(map(codec.read, _LIST.read(value))),
        lambda values: list(map(codec.write, values)),
    )


_LAYOUT = _Codec(_layout, _layout_to_wire)

Number = Annotated[int, _integer(0, _LARGEST)]
MemberNumber = Annotated[int, _integer(0, _MOST_MEMBERS)]
Count = Annotated[int, _integer(1, _MOST_MEMBERS)]
Version = Annotated[int, _integer(-_LARGEST, _LARGEST)]
Flag = Annotated[bool, _value("true or false", lambda value: type(value) is bool)]
Text = Annotated[str, _Codec(lambda value: _TEXTS.read([value])[0], _cut)]
Texts = Annotated[list[str], _TEXTS]
WireLayout = Annotated[Layout, _LAYOUT]
WireLayouts = Annotated[list[Layout], _each(_LAYOUT)]
OptionalLayouts = Annotated[list[Layout | None], _each(_optional(_LAYOUT))]
MemberNumbers = Annotated[list[int], _integers(_MOST_MEMBERS, _MOST_MEMBERS)]
Sums = Annotated[dict[int, int], _Codec(_sums, lambda sums: [list(sums), list(sums.values())])]
Digests = Annotated[
    list[str],
    _value("digests", lambda value: _is_list(value, str) and set(map(len, value)) <= {16}),
]
Ids = Annotated[list[bytes], _Codec(_ids, lambda ids: [one.hex() for one in ids])]
Provider = Annotated[str, _value("a provider", lambda value: value in ("host", "cuda"))]


@dataclass(frozen=True)
class Message:
    """A message."""


@dataclass(frozen=True)
class OfAttempt(Message):
    """A message about the attempt of this number."""

    epoch: Number


@dataclass(frozen=True)
class _Checksums(OfAttempt):
    sums: Sums  # by the number of the unit


@dataclass(frozen=True)
class _End(Message):
    reason: Text
    names: Texts  # of the tensors whose checksums differ, or of the lost members


# Messages of members


@dataclass(frozen=True)
class SenderHello(Message):
    """A sender other than the first joins."""

    number: Count


@dataclass(frozen=True)
class ReceiverHello(Message):
    """A receiver joins."""

    name: Text
    wanted: WireLayout | None  # the layout of its tensors; None is everything


@dataclass(frozen=True)
class Offer(Message):
    """A sender's offer for the next version."""

    version: Version
    layout: WireLayout | None  # None is the same as before, including the order
    order: Texts | None  # in which it produces its tensors; None if they all exist


class Sent(_Checksums):
    """A sender has sent its units, which have these checksums."""


class Checked(_Checksums):
    """The answer to Check: the checksums in the segments whose digests differ."""


class Committed(OfAttempt):
    """The answer to Commit: a receiver has committed the version."""


@dataclass(frozen=True)
class Failed(OfAttempt):
    """A member could not complete its part."""

    reason: Text
    own: Flag  # the error is local, so another attempt would not help


class Stopped(OfAttempt):
    """The answer to Stop."""


class Bye(Message):
    """The other side leaves, or has closed the session."""


# Messages of sender 0


class Welcome(Message):
    """The answer to a hello: the member takes part in the next version."""


@dataclass(frozen=True)
class Plan:
    """The input from which all members compute the plan: see plan.make_plan()."""

    senders: WireLayouts
    layouts: OptionalLayouts  # the distinct layouts that receivers want; None is everything
    receivers: MemberNumbers  # by receiver, the index of its layout in layouts
    bucket_bytes: Annotated[int, _integer(_SMALLEST_BUCKET, _MOST_BYTES)]
    direct_bytes: Annotated[int, _integer(1, _MOST_BYTES)]
    order: Texts | None  # of the tensors; None if they all exist

    def __post_init__(self) -> None:
        if max(self.receivers, default=0) >= max(len(self.layouts), 1):
            raise MessageError("a receiver refers to a missing layout")
        units = sum(
            1 + part.box.size * size_of(part.dtype) // self.bucket_bytes
            for layout in self.senders
            for part in layout.values()
        )
        if units > _MOST_UNITS:
            raise MessageError(f"a plan of more than {_MOST_UNITS} units")


@dataclass(frozen=True)
class WorldPlace:
    """The communicators of an attempt, and the position of a member in them."""

    ids: Ids  # by sender
    number: MemberNumber  # of this member among the senders or the receivers
    receivers: Count


@dataclass(frozen=True)
class Begin(OfAttempt):
    """An attempt begins."""

    provider: Provider
    plan: Plan | None  # None if the member knows it
    world: WorldPlace | None  # None to reuse the last communicators


@dataclass(frozen=True)
class Check(OfAttempt):
    """A receiver must compare the digests of all segments that were sent."""

    digests: Digests


class Stop(OfAttempt):
    """An attempt ends."""


@dataclass(frozen=True)
class Commit(Message):
    """All receivers have received a version: receivers commit it, senders are informed."""

    version: Version
    receivers: Texts  # names of those that have it; for senders, of those that committed it
    lost: Texts  # names of those that were dropped


class Refused(_End):
    """A version was given up, or a hello was refused."""


class Fail(_End):
    """The session ends with an error."""


def _codec(hint: Any) -> _Codec:  # noqa: ANN401
    if typing.get_origin(hint) is Annotated:
        codec: _Codec = hint.__metadata__[0]
        return codec
    if dataclasses.is_dataclass(hint):
        return _Codec(_reader(typing.cast("type", hint)), _to_wire)
    return _optional(_codec(typing.get_args(hint)[0]))


_codecs: dict[type, dict[str, _Codec]] = {}  # of the fields of each class


def _reader(kind: type) -> Reader:
    """Create a reader of objects with exactly the fields of a class."""
    hints = typing.get_type_hints(kind, include_extras=True)
    codecs = _codecs[kind] = {name: _codec(hint) for name, hint in hints.items()}

    def read(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict or value.keys() != codecs.keys():
            raise MessageError(f"expected the fields {', '.join(codecs)} of {kind.__name__}")
        fields = {}
        for name, codec in codecs.items():
            try:
                fields[name] = codec.read(value[name])
            except MessageError as error:
                raise MessageError(f"{kind.__name__}.{name}: {error}") from None
        return kind(**fields)

    return read


def _to_wire(value: object) -> dict[str, Any]:
    return {name: codec.write(getattr(value, name)) for name, codec in _codecs[type(value)].items()}


Hello = SenderHello | ReceiverHello
MessageTypes = Mapping[str, Reader]  # the messages that a side may send, by name


def _types(*kinds: type) -> MessageTypes:
    return {kind.__name__: _reader(kind) for kind in kinds}


HELLOS = _types(SenderHello, ReceiverHello)
FROM_SENDERS = _types(Offer, Sent, Failed, Stopped, Bye)
FROM_RECEIVERS = _types(Checked, Committed, Failed, Stopped, Bye)
FROM_LEADER = _types(Welcome, Begin, Check, Stop, Commit, Refused, Fail, Bye)


def encode(message: Message) -> bytes:
    """Serialize a message."""
    fields = {"kind": type(message).__name__, **_to_wire(message)}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse(data: bytes | bytearray, types: MessageTypes) -> Message:
    """Parse a message of one of the allowed types.

    Raises:
        MessageError: data is not one of them.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {type(error).__name__}") from None
    kind = value.pop("kind", None) if type(value) is dict else None
    if type(kind) is not str or kind not in types:
        raise MessageError(f"expected one of {', '.join(types)}")
    message: Message = types[kind](value)
    return message
