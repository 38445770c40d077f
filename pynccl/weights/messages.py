"""The messages of a session: JSON objects, each parsed once into a typed value.

Every field has a reader that checks its type and bounds its length. Invalid data raises
MessageError, and :mod:`pynccl.weights.wire` closes the connection that it came from.
"""
# ruff: noqa: RUF009 - _read() makes a field

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pynccl.weights.dtypes import size_of
from pynccl.weights.layout import MOST_DIMENSIONS, Box, Layout, Part, check_part, whole

__all__ = [
    "FROM_LEADER",
    "FROM_RECEIVERS",
    "FROM_SENDERS",
    "HELLOS",
    "Begin",
    "Bye",
    "Check",
    "Checked",
    "Commit",
    "Committed",
    "Compare",
    "Compared",
    "Fail",
    "Failed",
    "Hello",
    "Message",
    "MessageError",
    "MessageTypes",
    "Offer",
    "Plan",
    "ReceiverHello",
    "Refused",
    "Repair",
    "SenderHello",
    "Sent",
    "Stop",
    "Stopped",
    "Transport",
    "Welcome",
    "WorldPlace",
    "encode",
    "parse",
]

Transport = Literal["shared", "broadcast"]

_LONGEST_TEXT = 1 << 16  # characters
_MOST_MEMBERS = 1 << 16
_MOST_UNITS = 1 << 24
_MOST_BYTES = 1 << 60
_LARGEST = (1 << 63) - 1
_SUM = (1 << 64) - 1
_LONGEST_ID = 1 << 12  # characters
_SMALLEST_BUCKET = 1 << 12  # bytes


class MessageError(ValueError):
    """Received data is not a message, or not one that is allowed here."""


# Readers: each takes a value parsed from JSON, and returns a typed value or raises MessageError.

Reader: TypeAlias = "Callable[[Any], Any]"


def _wrong(value: object, expected: str) -> MessageError:
    return MessageError(f"expected {expected}, got {type(value).__name__}")


def _integer(least: int, most: int) -> Reader:
    def read(value: Any) -> int:  # noqa: ANN401
        if type(value) is not int or not least <= value <= most:
            raise _wrong(value, f"an integer from {least} to {most}")
        return value

    return read


def _list(value: Any) -> list[Any]:  # noqa: ANN401
    if type(value) is not list:
        raise _wrong(value, "a list")
    return value


def _flag(value: Any) -> bool:  # noqa: ANN401
    if type(value) is not bool:
        raise _wrong(value, "true or false")
    return value


def _text(value: Any) -> str:  # noqa: ANN401
    return _texts([value])[0]


def _texts(value: Any) -> list[str]:  # noqa: ANN401
    texts = _list(value)
    if not {type(text) for text in texts} <= {str} or max(map(len, texts), default=0) > (
        _LONGEST_TEXT
    ):
        raise _wrong(value, f"texts of at most {_LONGEST_TEXT} characters")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise MessageError("a text has a lone surrogate") from None
    return texts


def _one_of(*words: str) -> Reader:
    def read(value: Any) -> str:  # noqa: ANN401
        if type(value) is not str or value not in words:
            raise _wrong(value, f"one of {', '.join(words)}")
        return value

    return read


def _bandwidth(value: Any) -> float:  # noqa: ANN401
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise _wrong(value, "a bandwidth")
    return float(value)


def _optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _integers(value: Any, most: int, longest: int = _MOST_UNITS) -> list[int]:  # noqa: ANN401
    numbers = _list(value)
    # In C, since there can be as many as a model has tensors.
    if (
        len(numbers) > longest
        or not set(map(type, numbers)) <= {int}
        or (numbers and not 0 <= min(numbers) <= max(numbers) <= most)
    ):
        raise _wrong(value, f"at most {longest} integers from 0 to {most}")
    return numbers


def _units(value: Any) -> list[int]:  # noqa: ANN401
    return _integers(value, _MOST_UNITS)


def _sums(value: Any) -> dict[int, int]:  # noqa: ANN401
    pair = _list(value)
    if len(pair) != 2:
        raise _wrong(value, "the numbers of units and their checksums")
    numbers, values = _integers(pair[0], _MOST_UNITS), _integers(pair[1], _SUM)
    sums = dict(zip(numbers, values))  # noqa: B905 - compared below
    if not len(sums) == len(numbers) == len(values):
        raise MessageError("not one checksum for each unit")
    return sums


def _sums_to_wire(sums: Mapping[int, int]) -> list[list[int]]:
    return [list(sums), list(sums.values())]


def _digests(value: Any) -> list[str]:  # noqa: ANN401
    digests = _list(value)
    if not {type(one) for one in digests} <= {str} or not set(map(len, digests)) <= {16}:
        raise _wrong(value, "digests")
    return digests


def _id(value: Any) -> bytes:  # noqa: ANN401
    if type(value) is not str or len(value) > _LONGEST_ID:
        raise _wrong(value, "a unique id")
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise MessageError("a unique id is not hexadecimal") from None


def _ids(value: Any) -> list[bytes]:  # noqa: ANN401
    ids = _list(value)
    if not 0 < len(ids) <= _MOST_MEMBERS:
        raise _wrong(value, "unique ids")
    return [_id(one) for one in ids]


def _ids_to_wire(ids: Sequence[bytes]) -> list[str]:
    return [one.hex() for one in ids]


def _extents(value: Any) -> tuple[int, ...]:  # noqa: ANN401
    if type(value) is not list or len(value) > MOST_DIMENSIONS:
        raise _wrong(value, f"at most {MOST_DIMENSIONS} extents")
    for extent in value:
        if type(extent) is not int or not 0 <= extent <= _LARGEST:
            raise _wrong(extent, f"an integer from 0 to {_LARGEST}")
    return tuple(value)


def _layout(value: Any) -> Layout:  # noqa: ANN401
    rows = _list(value)
    if not set(map(type, rows)) <= {list} or not set(map(len, rows)) <= {4}:
        raise _wrong(value, "rows of a name, a dtype, a shape and a box")
    _texts([text for row in rows for text in row[:2]])
    layout: dict[str, Part] = {}
    for name, dtype, extents, ends in rows:
        shape = _extents(extents)
        if ends is None:
            box = whole(shape)
        elif type(ends) is list and len(ends) == 2:
            box = Box(_extents(ends[0]), _extents(ends[1]))
        else:
            raise _wrong(ends, "a start and a stop")
        layout[name] = part = Part(dtype, shape, box)
        try:
            check_part(name, part)
        except ValueError as error:
            raise MessageError(str(error)) from None
    if len(layout) != len(rows):
        raise MessageError("a layout has a name twice")
    return layout


def _layout_to_wire(layout: Layout) -> list[Any]:
    return [
        [name, dtype, shape, None if box == whole(shape) else [box.start, box.stop]]
        for name, (dtype, shape, box) in layout.items()
    ]


def _layouts(value: Any) -> list[Layout | None]:  # noqa: ANN401
    layouts = _list(value)
    if len(layouts) > _MOST_MEMBERS:
        raise _wrong(value, f"at most {_MOST_MEMBERS} layouts")
    return [None if one is None else _layout(one) for one in layouts]


def _layouts_to_wire(layouts: Sequence[Layout | None]) -> list[Any]:
    return [None if one is None else _layout_to_wire(one) for one in layouts]


def _whole_layouts(value: Any) -> list[Layout]:  # noqa: ANN401
    return [_layout(one) for one in _list(value)]


def _read(reader: Reader, write: Callable[[Any], Any] | None = None) -> Any:  # noqa: ANN401
    """A field of a message."""
    return field(metadata={"read": reader, "write": write})


def _object(kind: type) -> Reader:
    """Create a reader for a dataclass whose fields have readers: exactly these fields."""
    readers = {one.name: one.metadata["read"] for one in dataclasses.fields(kind)}

    def read(value: Any) -> Any:  # noqa: ANN401
        if type(value) is not dict or value.keys() != readers.keys():
            raise _wrong(value, f"{kind.__name__} with the fields {', '.join(readers) or 'none'}")
        read_fields = {}
        for name, reader in readers.items():
            try:
                read_fields[name] = reader(value[name])
            except MessageError as error:
                raise MessageError(f"{kind.__name__}.{name}: {error}") from None
        return kind(**read_fields)

    return read


def _to_wire(message: Any) -> dict[str, Any]:  # noqa: ANN401
    fields = {}
    for one in dataclasses.fields(message):
        value, write = getattr(message, one.name), one.metadata["write"]
        fields[one.name] = value if value is None or write is None else write(value)
    return fields


def _cut(text: str) -> str:
    return text.encode(errors="replace").decode()[:_LONGEST_TEXT]


_number = _integer(0, _LARGEST)
_member_number = _integer(0, _MOST_MEMBERS)
_version = _integer(-_LARGEST, _LARGEST)


# Messages of members


@dataclass(frozen=True)
class SenderHello:
    """A sender other than the first joins."""

    number: int = _read(_integer(1, _MOST_MEMBERS))


@dataclass(frozen=True)
class ReceiverHello:
    """A receiver joins.

    Attributes:
        name: used in messages.
        wanted: the layout of its tensors; None is everything.
        keeps_base: whether it writes a version over the last one.
    """

    name: str = _read(_text, _cut)
    wanted: Layout | None = _read(_optional(_layout), _layout_to_wire)
    keeps_base: bool = _read(_flag)


@dataclass(frozen=True)
class Offer:
    """A sender's offer for the next version.

    Attributes:
        version: its number.
        layout: None is the same as before, including the order.
        order: the order in which it produces its tensors; None if they all exist.
    """

    version: int = _read(_version)
    layout: Layout | None = _read(_optional(_layout), _layout_to_wire)
    order: list[str] | None = _read(_optional(_texts))


@dataclass(frozen=True)
class Compared:
    """The answer to Compare: the checksums of a sender's units."""

    epoch: int = _read(_number)
    sums: dict[int, int] = _read(_sums, _sums_to_wire)


@dataclass(frozen=True)
class Sent:
    """A sender has sent its units, which have these checksums."""

    epoch: int = _read(_number)
    sums: dict[int, int] = _read(_sums, _sums_to_wire)


@dataclass(frozen=True)
class Checked:
    """The answer to Check: the checksums in the segments whose digests differ."""

    epoch: int = _read(_number)
    sums: dict[int, int] = _read(_sums, _sums_to_wire)


@dataclass(frozen=True)
class Committed:
    """The answer to Commit: a receiver has committed the version."""

    epoch: int = _read(_number)


@dataclass(frozen=True)
class Failed:
    """A member could not complete its part.

    Attributes:
        epoch: of the attempt.
        reason: description of the error.
        own: whether the error is local, so that another attempt would not help.
    """

    epoch: int = _read(_number)
    reason: str = _read(_text, _cut)
    own: bool = _read(_flag)


@dataclass(frozen=True)
class Stopped:
    """The answer to Stop."""

    epoch: int = _read(_number)


@dataclass(frozen=True)
class Bye:
    """The other side leaves, or has closed the session."""


# Messages of sender 0


@dataclass(frozen=True)
class Welcome:
    """The answer to a hello: the member takes part in the next version."""


@dataclass(frozen=True)
class Plan:
    """The input from which all members compute the plan. Equal layouts of receivers are sent once.

    Attributes:
        senders: the layouts of the senders.
        layouts: the distinct layouts that receivers want; None is everything.
        receivers: by receiver, the index of its layout in layouts.
        bucket_bytes: size of a bucket.
        direct_bytes: units of at least this size are steps of their own.
        order: of the tensors; None if they all exist.
    """

    senders: list[Layout] = _read(_whole_layouts, _layouts_to_wire)
    layouts: list[Layout | None] = _read(_layouts, _layouts_to_wire)
    receivers: list[int] = _read(lambda value: _integers(value, _MOST_MEMBERS, _MOST_MEMBERS))
    bucket_bytes: int = _read(_integer(_SMALLEST_BUCKET, _MOST_BYTES))
    direct_bytes: int = _read(_integer(1, _MOST_BYTES))
    order: list[str] | None = _read(_optional(_texts))

    @property
    def wanted(self) -> list[Layout | None]:
        """The layout that each receiver wants."""
        return [self.layouts[place] for place in self.receivers]


def _plan(value: Any) -> Plan:  # noqa: ANN401
    plan: Plan = _object(Plan)(value)
    if max(plan.receivers, default=0) >= max(len(plan.layouts), 1):
        raise MessageError("a receiver has a layout that is not there")
    units = sum(
        1 + part.box.size * size_of(part.dtype) // plan.bucket_bytes
        for layout in plan.senders
        for part in layout.values()
    )
    if units > _MOST_UNITS:
        raise MessageError(f"a plan of more than {_MOST_UNITS} units")
    return plan


@dataclass(frozen=True)
class WorldPlace:
    """The communicators of an attempt, and the position of a member in them.

    Attributes:
        ids: the unique ids, by sender.
        number: of this member among the senders or the receivers.
        receivers: the number of receivers.
        transport: how buckets are transferred.
        measures: whether the link is measured.
    """

    ids: list[bytes] = _read(_ids, _ids_to_wire)
    number: int = _read(_member_number)
    receivers: int = _read(_integer(1, _MOST_MEMBERS))
    transport: Transport = _read(_one_of("shared", "broadcast"))
    measures: bool = _read(_flag)


@dataclass(frozen=True)
class Begin:
    """An attempt begins.

    Attributes:
        epoch: its number.
        provider: of the communicators.
        units: the units to send; None is all.
        plan: None if the member knows it.
        world: None to reuse the last communicators.
    """

    epoch: int = _read(_number)
    provider: str = _read(_one_of("host", "cuda"))
    units: list[int] | None = _read(_optional(_units))
    plan: Plan | None = _read(_optional(_plan), _to_wire)
    world: WorldPlace | None = _read(_optional(_object(WorldPlace)), _to_wire)


@dataclass(frozen=True)
class Compare:
    """A sender must compute the checksums of its units."""

    epoch: int = _read(_number)


@dataclass(frozen=True)
class Repair:
    """Units are sent again."""

    epoch: int = _read(_number)
    units: list[int] = _read(_units)


@dataclass(frozen=True)
class Check:
    """A receiver must compare the digests of all segments that were sent."""

    epoch: int = _read(_number)
    digests: list[str] = _read(_digests)


@dataclass(frozen=True)
class Stop:
    """An attempt ends."""

    epoch: int = _read(_number)


@dataclass(frozen=True)
class Commit:
    """All receivers have received a version: receivers commit it, senders are informed.

    Attributes:
        version: its number.
        receivers: names of those that have it; for senders, of those that committed it.
        lost: names of those that were dropped.
        repaired: names of tensors that were sent again.
        link: bytes per second, if measured.
    """

    version: int = _read(_version)
    receivers: list[str] = _read(_texts)
    lost: list[str] = _read(_texts)
    repaired: list[str] = _read(_texts)
    link: float | None = _read(_optional(_bandwidth))


@dataclass(frozen=True)
class Refused:
    """A version was given up, or a hello was refused.

    Attributes:
        reason: the reason.
        names: names of the tensors whose checksums differ.
    """

    reason: str = _read(_text, _cut)
    names: list[str] = _read(_texts)


@dataclass(frozen=True)
class Fail:
    """The session ends with an error.

    Attributes:
        reason: the reason.
        names: names of the lost members.
    """

    reason: str = _read(_text, _cut)
    names: list[str] = _read(_texts)


Hello = SenderHello | ReceiverHello
Message = (
    SenderHello
    | ReceiverHello
    | Offer
    | Compared
    | Sent
    | Checked
    | Committed
    | Failed
    | Stopped
    | Bye
    | Welcome
    | Begin
    | Compare
    | Repair
    | Check
    | Stop
    | Commit
    | Refused
    | Fail
)
MessageTypes = Mapping[str, Reader]  # the messages that a side may send, by name


def _types(*types: type) -> MessageTypes:
    return {kind.__name__: _object(kind) for kind in types}


HELLOS = _types(SenderHello, ReceiverHello)
FROM_SENDERS = _types(Offer, Compared, Sent, Failed, Stopped, Bye)
FROM_RECEIVERS = _types(Checked, Committed, Failed, Stopped, Bye)
FROM_LEADER = _types(Welcome, Begin, Compare, Repair, Check, Stop, Commit, Refused, Fail, Bye)


def encode(message: Message) -> bytes:
    """Serialize a message."""
    fields = {"kind": type(message).__name__, **_to_wire(message)}
    return json.dumps(fields, separators=(",", ":")).encode()


def parse(data: bytes | bytearray, types: MessageTypes) -> Message:
    """Parse a message.

    Args:
        data: the received bytes.
        types: the allowed messages.

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
