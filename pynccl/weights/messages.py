"""The messages of a session: JSON objects, each parsed once into a typed value.

The type of a field includes its codec, which checks received values and bounds their length.
Invalid data raises MessageError, and :mod:`pynccl.weights.wire` closes the connection that it came
from.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pynccl.weights.dtypes import size_of
from pynccl.weights.layout import MOST_DIMENSIONS, Box, Layout, Part, check_part, whole

__all__ = ["Message", "MessageError", "MessageTypes", "Transport", "encode", "parse"]

_LONGEST_TEXT = 1 << 16  # characters
_MOST_MEMBERS = 1 << 16
_MOST_UNITS = 1 << 24
_MOST_BYTES = 1 << 60
_LARGEST = (1 << 63) - 1
_LARGEST_SUM = (1 << 64) - 1
_LONGEST_ID = 1 << 12  # characters
_SMALLEST_BUCKET = 1 << 12  # bytes


class MessageError(ValueError):
    """Received data is not a message, or not one that is allowed here."""


Reader: TypeAlias = "Callable[[Any], Any]"  # of a JSON value; raises MessageError


class _Codec(NamedTuple):
    read: Reader
    write: Callable[[Any], Any] = lambda value: value


def _wrong(value: object, expected: str) -> MessageError:
    return MessageError(f"expected {expected}, got {type(value).__name__}")


def _integer(least: int, most: int) -> _Codec:
    def read(value: Any) -> int:  # noqa: ANN401
        if type(value) is not int or not least <= value <= most:
            raise _wrong(value, f"an integer from {least} to {most}")
        return value

    return _Codec(read)


def _list(value: Any, most: int = _MOST_UNITS) -> list[Any]:  # noqa: ANN401
    if type(value) is not list or len(value) > most:
        raise _wrong(value, f"a list of at most {most} values")
    return value


def _integers(value: Any, largest: int = _MOST_UNITS, most: int = _MOST_UNITS) -> list[int]:  # noqa: ANN401
    numbers = _list(value, most)
    # In C, since there can be as many as a model has tensors.
    if not set(map(type, numbers)) <= {int} or (
        numbers and not 0 <= min(numbers) <= max(numbers) <= largest
    ):
        raise _wrong(value, f"integers from 0 to {largest}")
    return numbers


def _flag(value: Any) -> bool:  # noqa: ANN401
    if type(value) is not bool:
        raise _wrong(value, "true or false")
    return value


def _texts(value: Any) -> list[str]:  # noqa: ANN401
    texts = _list(value)
    longest = max(map(len, texts), default=0) if set(map(type, texts)) <= {str} else math.inf
    if longest > _LONGEST_TEXT:
        raise _wrong(value, f"texts of at most {_LONGEST_TEXT} characters")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise MessageError("a text has a lone surrogate") from None
    return texts


def _cut(text: str) -> str:
    return text.encode(errors="replace").decode()[:_LONGEST_TEXT]


def _one_of(*words: str) -> _Codec:
    def read(value: Any) -> str:  # noqa: ANN401
        if type(value) is not str or value not in words:
            raise _wrong(value, f"one of {', '.join(words)}")
        return value

    return _Codec(read)


def _bandwidth(value: Any) -> float:  # noqa: ANN401
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise _wrong(value, "a bandwidth")
    return float(value)


def _sums(value: Any) -> dict[int, int]:  # noqa: ANN401
    pair = _list(value)
    if len(pair) != 2:
        raise _wrong(value, "the numbers of units and their checksums")
    numbers, values = _integers(pair[0]), _integers(pair[1], _LARGEST_SUM)
    sums = dict(zip(numbers, values))  # noqa: B905 - compared below
    if not len(sums) == len(numbers) == len(values):
        raise MessageError("not one checksum for each unit")
    return sums


def _digests(value: Any) -> list[str]:  # noqa: ANN401
    digests = _list(value)
    if not set(map(type, digests)) <= {str} or not set(map(len, digests)) <= {16}:
        raise _wrong(value, "digests")
    return digests


def _ids(value: Any) -> list[bytes]:  # noqa: ANN401
    texts = _list(value, _MOST_MEMBERS)
    if not texts or any(type(one) is not str or len(one) > _LONGEST_ID for one in texts):
        raise _wrong(value, "unique ids")
    try:
        return list(map(bytes.fromhex, texts))
    except ValueError:
        raise MessageError("a unique id is not hexadecimal") from None


def _extents(value: Any) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(_integers(value, _LARGEST, MOST_DIMENSIONS))


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


def _optional(codec: _Codec) -> _Codec:
    def applied(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: None if value is None else function(value)

    return _Codec(*map(applied, codec))


def _each(codec: _Codec) -> _Codec:
    return _Codec(
        lambda value: list(map(codec.read, _list(value, _MOST_MEMBERS))),
        lambda values: list(map(codec.write, values)),
    )


_LAYOUT = _Codec(_layout, _layout_to_wire)
_MEMBER_NUMBER = _integer(0, _MOST_MEMBERS)

Number = Annotated[int, _integer(0, _LARGEST)]
MemberNumber = Annotated[int, _MEMBER_NUMBER]
Count = Annotated[int, _integer(1, _MOST_MEMBERS)]
Version = Annotated[int, _integer(-_LARGEST, _LARGEST)]
Flag = Annotated[bool, _Codec(_flag)]
Text = Annotated[str, _Codec(lambda value: _texts([value])[0], _cut)]
Texts = Annotated[list[str], _Codec(_texts)]
WireLayout = Annotated[Layout, _LAYOUT]
WireLayouts = Annotated[list[Layout], _each(_LAYOUT)]
OptionalLayouts = Annotated[list[Layout | None], _each(_optional(_LAYOUT))]
MemberNumbers = Annotated[list[int], _each(_MEMBER_NUMBER)]
Units = Annotated[list[int], _Codec(_integers)]
Sums = Annotated[dict[int, int], _Codec(_sums, lambda sums: [list(sums), list(sums.values())])]
Digests = Annotated[list[str], _Codec(_digests)]
Ids = Annotated[list[bytes], _Codec(_ids, lambda ids: [one.hex() for one in ids])]
Provider = Annotated[str, _one_of("host", "cuda")]
Transport = Annotated[Literal["shared", "broadcast"], _one_of("shared", "broadcast")]
Bandwidth = Annotated[float, _Codec(_bandwidth)]


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
    """A receiver joins.

    Attributes:
        name: used in messages.
        wanted: the layout of its tensors; None is everything.
        keeps_base: whether it writes a version over the last one.
    """

    name: Text
    wanted: WireLayout | None
    keeps_base: Flag


@dataclass(frozen=True)
class Offer(Message):
    """A sender's offer for the next version.

    Attributes:
        version: its number.
        layout: None is the same as before, including the order.
        order: the order in which it produces its tensors; None if they all exist.
    """

    version: Version
    layout: WireLayout | None
    order: Texts | None


class Compared(_Checksums):
    """The answer to Compare: the checksums of a sender's units."""


class Sent(_Checksums):
    """A sender has sent its units, which have these checksums."""


class Checked(_Checksums):
    """The answer to Check: the checksums in the segments whose digests differ."""


class Committed(OfAttempt):
    """The answer to Commit: a receiver has committed the version."""


@dataclass(frozen=True)
class Failed(OfAttempt):
    """A member could not complete its part.

    Attributes:
        reason: description of the error.
        own: whether the error is local, so that another attempt would not help.
    """

    reason: Text
    own: Flag


class Stopped(OfAttempt):
    """The answer to Stop."""


class Bye(Message):
    """The other side leaves, or has closed the session."""


# Messages of sender 0


class Welcome(Message):
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

    senders: WireLayouts
    layouts: OptionalLayouts
    receivers: MemberNumbers
    bucket_bytes: Annotated[int, _integer(_SMALLEST_BUCKET, _MOST_BYTES)]
    direct_bytes: Annotated[int, _integer(1, _MOST_BYTES)]
    order: Texts | None

    def __post_init__(self) -> None:
        if max(self.receivers, default=0) >= max(len(self.layouts), 1):
            raise MessageError("a receiver has a layout that is not there")
        units = sum(
            1 + part.box.size * size_of(part.dtype) // self.bucket_bytes
            for layout in self.senders
            for part in layout.values()
        )
        if units > _MOST_UNITS:
            raise MessageError(f"a plan of more than {_MOST_UNITS} units")


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

    ids: Ids
    number: MemberNumber
    receivers: Count
    transport: Transport
    measures: Flag


@dataclass(frozen=True)
class Begin(OfAttempt):
    """An attempt begins.

    Attributes:
        provider: of the communicators.
        units: the units to send; None is all.
        plan: None if the member knows it.
        world: None to reuse the last communicators.
    """

    provider: Provider
    units: Units | None
    plan: Plan | None
    world: WorldPlace | None


class Compare(OfAttempt):
    """A sender must compute the checksums of its units."""


@dataclass(frozen=True)
class Repair(OfAttempt):
    """Units are sent again."""

    units: Units


@dataclass(frozen=True)
class Check(OfAttempt):
    """A receiver must compare the digests of all segments that were sent."""

    digests: Digests


class Stop(OfAttempt):
    """An attempt ends."""


@dataclass(frozen=True)
class Commit(Message):
    """All receivers have received a version: receivers commit it, senders are informed.

    Attributes:
        version: its number.
        receivers: names of those that have it; for senders, of those that committed it.
        lost: names of those that were dropped.
        repaired: names of tensors that were sent again.
        link: bytes per second, if measured.
    """

    version: Version
    receivers: Texts
    lost: Texts
    repaired: Texts
    link: Bandwidth | None


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
            raise _wrong(value, f"{kind.__name__} with the fields {', '.join(codecs) or 'none'}")
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
FROM_SENDERS = _types(Offer, Compared, Sent, Failed, Stopped, Bye)
FROM_RECEIVERS = _types(Checked, Committed, Failed, Stopped, Bye)
FROM_LEADER = _types(Welcome, Begin, Compare, Repair, Check, Stop, Commit, Refused, Fail, Bye)


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
