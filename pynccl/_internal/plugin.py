"""The plugin library that NCCL loads (csrc/plugin), as seen from Python through ctypes."""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pynccl._internal.typed_json import FieldError, build

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "ALGORITHMS",
    "FUNCTIONS",
    "PROFILES",
    "PROTOCOLS",
    "Choice",
    "Event",
    "Rule",
    "choices",
    "display_name",
    "enable",
    "interfaces",
    "path",
    "profiler_version",
    "read_rules",
    "set_rules",
    "start_profile",
    "stop_profile",
]

# In the order of NCCL's numbers.
FUNCTIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")

# Bits of abi::ProfilerEvent by the names of nccl.trace(profile=): the kernel's channels, and the
# steps of the proxies with the operations that are their parents.
PROFILES = {"kernel": 1 << 6, "proxy": 1 << 3 | 1 << 4}
_ALWAYS = 1 << 0 | 1 << 1 | 1 << 2  # kernel launches, collectives, messages
_FIRST_KERNEL = 3  # the version of the interface that has events of the kernel's channels
_LATE_SECONDS = 0.1  # for the proxy thread to report the last operation

_VARIABLES = ("NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")
_LONGEST = 254  # characters of a plugin's path that NCCL reads
# The most records of each kind, as in csrc/plugin.
_CHOICES, _EVENTS = 4096, 1 << 15
_MOST_BYTES = 2**64 - 1
_MOST_FILE_BYTES = 1 << 20  # of a tuning file, for 256 rules


class Choice(ctypes.Structure):  # TunerChoice in csrc/plugin/records.h
    _fields_ = (
        ("number", ctypes.c_uint64),
        ("context", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("chunk", ctypes.c_uint64),
        ("thread", ctypes.c_int64),
        ("function", ctypes.c_int32),
        ("operations", ctypes.c_int32),
        ("registered", ctypes.c_int32),
        ("algorithms", ctypes.c_int32),
        ("protocols", ctypes.c_int32),
        ("algorithm", ctypes.c_int32),
        ("protocol", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("rule", ctypes.c_int32),
        ("costs", ctypes.c_float * 4 * 8),
    )


class Event(ctypes.Structure):  # ProfilerRecord
    _fields_ = (
        ("number", ctypes.c_uint64),
        ("time", ctypes.c_int64),
        ("sendbuff", ctypes.c_uint64),
        ("recvbuff", ctypes.c_uint64),
        ("launch", ctypes.c_uint64),
        ("started", ctypes.c_uint64),
        ("began", ctypes.c_uint64),
        ("ended", ctypes.c_uint64),
        ("shortest", ctypes.c_uint64),
        ("longest", ctypes.c_uint64),
        ("waits", ctypes.c_uint64 * 6),
        ("rank", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("channels", ctypes.c_int32),
        ("stopped", ctypes.c_int32),
        ("proxies", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("open", ctypes.c_int32),
        ("function", ctypes.c_char * 16),
        ("algorithm", ctypes.c_char * 20),
        ("protocol", ctypes.c_char * 16),
    )


class _Rule(ctypes.Structure):  # TunerRule
    _fields_ = (
        ("min_bytes", ctypes.c_uint64),
        ("max_bytes", ctypes.c_uint64),
        ("function", ctypes.c_int32),
        ("nranks", ctypes.c_int32),
        ("algorithm", ctypes.c_int32),
        ("protocol", ctypes.c_int32),
        ("channels", ctypes.c_int32),
    )


@dataclass(frozen=True)
class Rule:
    """A rule of a tuning file: a choice that is forced for an operation and a range of bytes.

    Attributes:
        operation: such as "all_reduce".
        algorithm: one of NCCL's, in any case: "ring", "NVLSTree".
        protocol: "LL", "LL128" or "Simple".
        min_bytes, max_bytes: the range, inclusive, of the larger buffer.
        channels: 0 leaves the number to NCCL.
        nranks: the size of the communicators; 0 is any.
    """

    operation: str
    algorithm: str
    protocol: str
    min_bytes: int = 0
    max_bytes: int = _MOST_BYTES
    channels: int = 0
    nranks: int = 0


@dataclass(frozen=True)
class _File:
    rules: list[Rule]


def path() -> Path:
    """Return the path of the plugin."""
    return Path(__file__).parents[1] / "lib" / "libpynccl_plugin.so"


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(path()))
    for name in ("pynccl_plugin_choices", "pynccl_plugin_events"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64]
        function.restype = ctypes.c_uint64
    library.pynccl_plugin_rules.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.pynccl_plugin_rules.restype = ctypes.c_uint64
    library.pynccl_plugin_profile.restype = ctypes.c_uint64
    return library


_T = TypeVar("_T", Choice, Event)


def _records(name: str, kind: type[_T], most: int, after: int) -> list[_T]:
    found = (kind * most)()
    return list(found[: getattr(_library(), name)(after, found, most)])


def start_profile(profile: Collection[str] = tuple(PROFILES)) -> int:
    """Switch the profiler on. Returns the number of its last event.

    Args:
        profile: of PROFILES, what to record beside NCCL's choices.
    """
    bits = sum(PROFILES[name] for name in set(profile))
    return int(_library().pynccl_plugin_profile(_ALWAYS | bits))


def stop_profile(after: int, profile: Collection[str] = ()) -> list[Event]:
    """Switch the profiler off. Returns the events whose number is above one, oldest first.

    NCCL's proxy thread sees the end of a kernel later than a stream does, so this waits shortly for
    events that are not complete.
    """
    _library().pynccl_plugin_profile(0)
    until = time.monotonic() + _LATE_SECONDS
    kernels = "kernel" in profile and profiler_version() >= _FIRST_KERNEL
    while True:
        events = _records("pynccl_plugin_events", Event, _EVENTS, after)
        late = any(
            one.open or (kernels and one.started.bit_count() < one.channels) for one in events
        )
        if not late or time.monotonic() >= until:
            return events
        time.sleep(_LATE_SECONDS / 100)


def profiler_version() -> int:
    """Return the version of the interface with which NCCL opened the profiler, 0 if it has not."""
    return int(_library().pynccl_plugin_profiler_version())


def display_name(text: str, names: tuple[str, ...]) -> str | None:
    """Return the name that is equal but for case and underscores, text if none is, None for ""."""
    return next((name for name in names if _fold(name) == _fold(text)), text) or None


def _fold(name: str) -> str:
    return name.lower().replace("_", "")


def choices(after: int = 0) -> list[Choice]:
    """Return the recorded choices whose number is above one, oldest first."""
    return _records("pynccl_plugin_choices", Choice, _CHOICES, after)


def enable() -> None:
    """Have NCCL load the plugin with the first communicator of this process and its children.

    Raises:
        ValueError: NCCL_TUNER_PLUGIN or NCCL_PROFILER_PLUGIN names another plugin, or the path is
            too long for NCCL.
    """
    own = str(path())
    for variable in _VARIABLES:
        other = os.environ.get(variable, own)
        if other != own:
            raise ValueError(
                f"{variable} is {other!r}, but NCCL loads one such plugin, and nccl.explain() "
                "needs pynccl's; unset it"
            )
    if len(own) > _LONGEST:
        raise ValueError(
            f"NCCL reads {_LONGEST} characters of a plugin's path, and {own} has {len(own)}; "
            "install pynccl in a folder with a shorter path"
        )
    _library()
    os.environ.update(dict.fromkeys(_VARIABLES, own))


def interfaces(file: str | os.PathLike[str], symbol: str = "ncclTunerPlugin") -> list[int]:
    """Return the versions of an interface that a library names, in ascending order."""
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return sorted({int(one) for one in re.findall(symbol.encode() + rb"_v(\d+)", text)})


def read_rules(file: str | os.PathLike[str]) -> list[Rule]:
    """Read a tuning file: a JSON object with a list ``rules``, each an object with Rule's fields.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a file. The text names the file and the rule.
    """
    try:
        with open(file, "rb") as opened:
            data = opened.read(_MOST_FILE_BYTES + 1)
        if len(data) > _MOST_FILE_BYTES:
            raise ValueError(f"it has more than {_MOST_FILE_BYTES} bytes")
        rules = build(_File, json.loads(data)).rules
        for number, rule in enumerate(rules):
            _packed(rule, f"rules[{number}]")
    except (FieldError, ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(file)}: {error}") from None
    return rules


def set_rules(rules: list[Rule]) -> None:
    """Replace the rules that force choices.

    Raises:
        ValueError: a rule is not valid, or there are too many.
    """
    packed = [_packed(rule, f"rules[{number}]") for number, rule in enumerate(rules)]
    kept = _library().pynccl_plugin_rules((_Rule * len(packed))(*packed), len(packed))
    if kept < len(packed):
        _library().pynccl_plugin_rules(None, 0)
        raise ValueError(f"rules: {len(packed)} are too many; the plugin takes {kept}")


def _packed(rule: Rule, where: str) -> _Rule:
    def number(field: str, names: tuple[str, ...]) -> int:
        text = getattr(rule, field)
        name = display_name(text, names)
        if name not in names:
            raise ValueError(f"{where}: {field}: {text!r} is not one of {', '.join(names)}")
        return names.index(name)

    for field, least, most in (
        ("min_bytes", 0, _MOST_BYTES),
        ("max_bytes", rule.min_bytes, _MOST_BYTES),
        ("channels", 0, 64),
        ("nranks", 0, 2**31 - 1),
    ):
        if not least <= getattr(rule, field) <= most:
            value = getattr(rule, field)
            raise ValueError(f"{where}: {field}: {value} is not between {least} and {most}")
    return _Rule(
        rule.min_bytes,
        rule.max_bytes,
        number("operation", FUNCTIONS),
        rule.nranks,
        number("algorithm", ALGORITHMS),
        number("protocol", PROTOCOLS),
        rule.channels,
    )
