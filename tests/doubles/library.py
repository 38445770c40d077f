"""Python access to the double: driver calls, recorded calls, violations, busy GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "Call",
    "blocked_queries",
    "busy",
    "driver",
    "folder",
    "held",
    "of_version",
    "record",
    "slow",
    "torch_device",
    "use",
    "violations",
]

_MOST_ARGUMENTS = 16
_RUNNING = -1


class _Call(ctypes.Structure):  # RecordedCall in cuda/driver/record.h
    _fields_ = (
        ("function", ctypes.c_char_p),
        ("stream", ctypes.c_uint64),
        ("result", ctypes.c_int32),
        ("arguments", ctypes.c_int32),
        ("argument", ctypes.c_uint64 * _MOST_ARGUMENTS),
    )


class Call(NamedTuple):
    """A recorded call of the driver or of NCCL.

    Attributes:
        function: its name.
        result: the returned code; None while it runs.
        stream: the handle of its stream; 0 for the default stream, and if it takes none.
        arguments: all arguments as integers; 0 for structs.
    """

    function: str
    result: int | None
    stream: int
    arguments: tuple[int, ...]


class Driver:
    """The functions of libcuda.so.1. A failure raises."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - of ctypes
        """Call a function. Integers are passed as 64-bit values, other arguments as by ctypes.

        Raises:
            RuntimeError: the function failed.
        """
        passed = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        result = self.library[function](*passed)
        if result:
            name = ctypes.c_char_p()
            self.library.cuGetErrorName(result, ctypes.byref(name))
            text = name.value.decode() if name.value else str(result)
            raise RuntimeError(f"{function} failed: {text}")

    def new(self, function: str, *arguments: Any) -> int:  # noqa: ANN401 - of ctypes
        """Call a function, and return the value that it writes to its first parameter."""
        written = ctypes.c_uint64()
        self(function, ctypes.byref(written), *arguments)
        return written.value

    def end_capture(self, stream: int) -> int:
        """End the capture of a stream, and return its graph."""
        graph = ctypes.c_uint64()
        self("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value

    def query(self, function: str, handle: int) -> bool:
        """Whether the work of a stream, or before an event, is complete."""
        not_ready = 600
        result = self.library[function](ctypes.c_uint64(handle))
        if result not in (0, not_ready):
            raise RuntimeError(f"{function} failed: {result}")
        return bool(result == 0)


_loaded: Driver | None = None


def folder() -> Path:
    """The folder of the libraries."""
    return Path(os.environ["CUDA_DOUBLE_LIBRARIES"])


def of_version(version: str) -> dict[str, str]:
    """The variables of a process with the double of another release."""
    from tests.doubles import build

    return {"PYNCCL_DOUBLE": version, "PYNCCL_NCCL_LIBRARY": str(build.nccl(folder(), version))}


def driver() -> Driver:
    """Load libcuda.so.1. The dynamic linker then resolves that name to it."""
    global _loaded  # noqa: PLW0603 - loaded once in a process
    if _loaded is None:
        library = ctypes.CDLL(str(folder() / "libcuda.so.1"))
        library.cuda_double_calls.restype = ctypes.c_size_t
        library.cuda_double_violations.restype = ctypes.c_size_t
        library.cuda_double_violation.restype = ctypes.c_size_t
        library.cuda_double_busy.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_double]
        library.cuda_double_hold.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p]
        library.cuda_double_free.argtypes = [ctypes.c_void_p]
        library.cuda_double_free.restype = None
        library.cuda_double_allocate.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t]
        library.cuda_double_allocate.restype = ctypes.c_void_p
        library.cuda_double_record_stream.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_uint64,
        ]
        library.cuda_double_record_stream.restype = None
        library.cuInit(0)
        _loaded = Driver(library)
    return _loaded


def use(device: int) -> None:
    """Make a device's primary context current."""
    driver()("cuCtxSetCurrent", driver().new("cuDevicePrimaryCtxRetain", device))


@functools.cache
def torch_device() -> ctypes.CDLL:
    """Load the CUDA device of torch's own tensors, which registers itself."""
    library = ctypes.CDLL(str(folder() / "libtorch_device.so"))
    library.cuda_double_set_current_stream.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.cuda_double_set_current_stream.restype = None
    library.cuda_double_current_stream.argtypes = [ctypes.c_int]
    library.cuda_double_current_stream.restype = ctypes.c_uint64
    return library


class Record:
    """The calls between the start and the end of record()."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def named(self, *functions: str) -> list[Call]:
        """The calls of some functions."""
        return [call for call in self.calls if call.function in functions]

    def names(self) -> list[str]:
        """The function names, in call order."""
        return [call.function for call in self.calls]

    def read(self) -> None:
        """Fetch the calls recorded so far."""
        library = driver().library
        count = library.cuda_double_calls(None, ctypes.c_size_t(0))
        calls = (_Call * count)()
        count = min(count, library.cuda_double_calls(calls, ctypes.c_size_t(count)))
        self.calls = [_read(call) for call in calls[:count]]


def _read(call: _Call) -> Call:
    return Call(
        call.function.decode(),
        None if call.result == _RUNNING else call.result,
        call.stream,
        tuple(call.argument[: call.arguments]),
    )


@contextlib.contextmanager
def record() -> Iterator[Record]:
    """Record the driver and NCCL calls of all threads."""
    library, made = driver().library, Record()
    library.cuda_double_record(1)
    try:
        yield made
    finally:
        library.cuda_double_record(0)
        made.read()


def violations(*, clear: bool = False) -> list[str]:
    """The violations of device memory rules in this process."""
    library = driver().library
    texts = []
    for index in range(library.cuda_double_violations()):
        text = ctypes.create_string_buffer(1024)
        library.cuda_double_violation(ctypes.c_size_t(index), text, ctypes.c_size_t(len(text)))
        texts.append(text.value.decode())
    if clear:
        library.cuda_double_clear_violations()
    return texts


def busy(seconds: float, stream: int = 0, device: int = 0) -> None:
    """Keep a stream of a device busy, which delays work enqueued later."""
    result = driver().library.cuda_double_busy(device, stream, seconds)
    if result:
        raise RuntimeError(f"the stream cannot be kept busy: CUDA error {result}")


_released: list[ctypes.c_int] = []  # which streams may still read


@contextlib.contextmanager
def held(stream: int = 0, device: int = 0) -> Iterator[Callable[[], None]]:
    """Keep a stream of a device busy until the end. Yields a function that releases it earlier."""
    released = ctypes.c_int()
    _released.append(released)
    result = driver().library.cuda_double_hold(device, stream, ctypes.addressof(released))
    if result:
        raise RuntimeError(f"the stream cannot be held: CUDA error {result}")

    def release() -> None:
        released.value = 1

    try:
        yield release
    finally:
        release()


@contextlib.contextmanager
def blocked_queries() -> Iterator[Callable[[], int]]:
    """Block threads that query a stream or an event. Yields a function that counts them."""
    block = driver().library.cuda_double_block_queries
    block(1)
    try:
        yield lambda: int(block(1))
    finally:
        block(0)


@contextlib.contextmanager
def slow(seconds: float, what: str = "KERNEL") -> Iterator[None]:
    """Set the minimum duration of every kernel and NCCL operation in this process.

    With what="STREAM": set how long each new stream does nothing.
    """
    variable = f"CUDA_DOUBLE_{what}_SECONDS"
    os.environ[variable] = str(seconds)
    try:
        yield
    finally:
        del os.environ[variable]
