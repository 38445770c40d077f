"""ctypes bindings of NCCL and of the few driver calls that probes need, for any library.

Functions, argument types and the fields of ncclConfig_t come from the lists of csrc/abi.
"""

from __future__ import annotations

import ctypes as c
import functools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "UNDEFINED",
    "Driver",
    "MissingError",
    "Nccl",
    "SimInfo",
    "UniqueId",
    "configuration",
    "since",
]

_ABI = Path(__file__).resolve().parents[2] / "csrc" / "abi"
_CODES = (
    "success",
    "unhandledCudaError",
    "systemError",
    "internalError",
    "invalidArgument",
    "invalidUsage",
    "remoteError",
    "inProgress",
    "timeout",
)
_MAGIC = 0xCAFEBEEF
UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT
_NOT_READY = 600  # CUDA_ERROR_NOT_READY


class MissingError(Exception):
    """The library has no such function or no such configuration field."""


class UniqueId(c.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", c.c_byte * 128),)


class SimInfo(c.Structure):
    """ncclSimInfo_t."""

    _fields_ = (
        ("size", c.c_size_t),
        ("magic", c.c_uint),
        ("version", c.c_uint),
        ("estimatedTime", c.c_float),
    )


def _type(kind: str, name: str) -> Any:  # noqa: ANN401 - a class of ctypes
    if kind != "IN" or "*" in name or name.startswith("cudaStream"):
        return c.c_void_p
    if name in {"ncclComm_t", "ncclWindow_t", "ncclParamHandle_t"}:
        return c.c_void_p
    other = {"size_t": c.c_size_t, "ncclUniqueId": UniqueId, "unsigned int": c.c_uint}
    return other.get(name, c.c_int)


@functools.cache
def _functions() -> dict[str, tuple[int, list[Any]]]:
    """The first release and the argument types of each function, by name."""
    found = {}
    text = (_ABI / "nccl_functions.inc").read_text()
    for since_, name, rest in re.findall(r"^FUNCTION\((\d+), [^,]+, nccl(\w+)(.*)\)$", text, re.M):
        parameters = re.findall(r"([A-Z]+)\(([^,()]+)", rest)
        found[name] = int(since_), [_type(kind, type_) for kind, type_ in parameters]
    return found


def since(function: str) -> int:
    """The first release with a function, as an NCCL_VERSION_CODE."""
    return _functions()[function][0]


class Nccl:
    """The functions of one library, without their prefix. Each returns the name of its result."""

    def __init__(self, library: c.CDLL) -> None:
        self._library = library
        version = c.c_int()
        library.ncclGetVersion(c.byref(version))
        self.version = version.value

    def __getattr__(self, name: str) -> Callable[..., str]:
        try:
            function = self._library["nccl" + name]
        except AttributeError:
            raise MissingError(name) from None
        function.argtypes = _functions()[name][1]

        def call(*arguments: object) -> str:
            code: int = function(*arguments)
            return _CODES[code] if 0 <= code < len(_CODES) else str(code)

        setattr(self, name, call)
        return call

    def text(self, name: str, argument: object) -> str:
        """The text that ncclGetErrorString or ncclGetLastError returns."""
        function = self._library["nccl" + name]
        function.restype, function.argtypes = c.c_char_p, _functions()[name][1]
        found: bytes | None = function(argument)
        return found.decode() if found else ""

    @staticmethod
    def name(code: int) -> str:
        """The name of a result code."""
        return _CODES[code]


@functools.cache
def _layout(version: int) -> type[c.Structure]:
    """ncclConfig_t in a release."""
    text = (_ABI / "config_fields.inc").read_text()
    fields: list[tuple[str, Any]] = [
        ("size", c.c_size_t),
        ("magic", c.c_uint),
        ("version", c.c_uint),
    ]
    for since_, type_, name in re.findall(r"^FIELD\((\d+), ([^,]+), (\w+)", text, re.M):
        if int(since_) <= version:
            fields.append((name, c.c_int if type_ == "int" else c.c_char_p))
    return type("Config", (c.Structure,), {"_fields_": fields})


def configuration(version: int, **fields: object) -> Any:  # noqa: ANN401 - its fields depend on the version
    """Return NCCL_CONFIG_INITIALIZER of a release with some fields set."""
    made: Any = _layout(version)()
    made.size, made.magic, made.version = c.sizeof(made), _MAGIC, version
    for name, type_ in made._fields_[3:]:
        if type_ is c.c_int:
            setattr(made, name, UNDEFINED)
    for name, value in fields.items():
        if not hasattr(made, name):
            raise MissingError(name)
        setattr(made, name, value)
    return made


class Driver:
    """Devices, streams and memory, from libcuda.so.1 or a library with its own streams."""

    def __init__(self, library: c.CDLL, host: bool) -> None:
        self._library, self.host = library, host
        self._memory: list[object] = []
        text = (_ABI / "driver_functions.inc").read_text()
        self._symbols = dict(
            reversed(pair) for pair in re.findall(r"^FUNCTION\((\w+), [^,]+, (\w+)", text, re.M)
        )
        self("Init", 0)

    def query(self, name: str, *arguments: object) -> int:
        """Call a function, and return its result."""
        symbol = "host" + name if self.host else self._symbols.get(name, "cu" + name)
        result: int = self._library[symbol](*arguments)
        return result

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function that must succeed."""
        if result := self.query(name, *arguments):
            raise RuntimeError(f"cu{name} failed with {result}")

    def devices(self) -> int:
        """The number of devices."""
        count = c.c_int()
        self("DeviceGetCount", c.byref(count))
        return count.value

    def use(self, device: int) -> None:
        """Make the primary context of a device current, as cudaSetDevice() does."""
        context = c.c_void_p()
        self("DevicePrimaryCtxRetain", c.byref(context), device)
        self("CtxSetCurrent", context)

    def current(self) -> int:
        """The current device."""
        device = c.c_int()
        self("CtxGetDevice", c.byref(device))
        return device.value

    def stream(self) -> c.c_void_p:
        """A new stream."""
        stream = c.c_void_p()
        self("StreamCreateWithPriority", c.byref(stream), 1, 0)
        return stream

    def memory(self, size: int = 4096) -> c.c_void_p:
        """New memory of a device, aligned to 4096 bytes, never freed."""
        if self.host:
            block = c.create_string_buffer(size + 4096)
            self._memory.append(block)
            return c.c_void_p((c.addressof(block) + 4095) & ~4095)
        memory = c.c_void_p()
        self("MemAlloc_v2", c.byref(memory), c.c_size_t(size))
        return memory

    def write(self, memory: c.c_void_p, value: float, count: int = 4) -> None:
        """Fill the beginning of memory with floats."""
        data = (c.c_float * count)()
        data[:] = [value] * count
        if self.host:
            c.memmove(memory, data, c.sizeof(data))
        else:
            self("MemcpyHtoD_v2", memory, data, c.c_size_t(c.sizeof(data)))

    def read(self, memory: c.c_void_p) -> float:
        """The first float in memory."""
        data = c.c_float()
        if self.host:
            c.memmove(c.byref(data), memory, 4)
        else:
            self("MemcpyDtoH_v2", c.byref(data), memory, c.c_size_t(4))
        return data.value

    def finish(self, stream: c.c_void_p, seconds: float = 10) -> str:
        """Wait for a stream: "done", "error", or "pending" after some seconds."""
        end = time.monotonic() + seconds
        while (result := self.query("StreamQuery", stream)) == _NOT_READY:
            if time.monotonic() > end:
                return "pending"
            time.sleep(0.002)
        return "error" if result else "done"
