"""Stand-ins for torch.cuda and for torch's factory functions, on the double.

activate() replaces torch's own functions by the stand-ins, for all threads of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch.utils._device import _device_constructors

from tests.doubles import library, tensor
from tests.doubles.tensor import CudaTensor, ordinal_of, to_device

__all__ = ["STAND_INS", "activate", "stop"]

_DISABLE_TIMING = 2
_NON_BLOCKING = 1
T = TypeVar("T")


def device_count() -> int:
    count = ctypes.c_int()
    library.driver()("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def current_device() -> int:
    """The device of the current context, or 0 in a thread without one, as in the CUDA runtime."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    library.driver()("cuCtxGetCurrent", ctypes.byref(context))
    if not context.value:
        return 0
    library.driver()("cuCtxGetDevice", ctypes.byref(device))
    return device.value


def set_device(device: Any) -> None:  # noqa: ANN401
    ordinal = ordinal_of(device)
    if ordinal < 0:
        return
    context = ctypes.c_void_p()
    library.driver()("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    library.driver()("cuCtxSetCurrent", context)


class device:  # noqa: N801 - torch's name
    """A device that is current inside a with block."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401
        self.idx = ordinal_of(device) if device is not None else -1
        self._before = ctypes.c_void_p()

    def __enter__(self) -> None:
        library.driver()("cuCtxGetCurrent", ctypes.byref(self._before))
        set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        if self._before.value:
            library.driver()("cuCtxSetCurrent", self._before)


def synchronize(device_: Any = None) -> None:  # noqa: ANN401
    with device(ordinal_of(device_)):
        library.driver()("cuCtxSynchronize")


class Stream:
    """A new stream, or an existing one with cuda_stream=."""

    def __init__(
        self,
        device: Any = None,  # noqa: ANN401
        priority: int = 0,
        *,
        cuda_stream: int | None = None,
        **_: object,
    ) -> None:
        self.device = torch.device("cuda", ordinal_of(device))
        self.device_index = self.device.index
        if cuda_stream is None:
            made = ctypes.c_uint64()
            with torch.cuda.device(self.device):
                library.driver()(
                    "cuStreamCreateWithPriority", ctypes.byref(made), _NON_BLOCKING,
                    ctypes.c_int(priority),
                )  # fmt: skip
            cuda_stream = made.value
        self.cuda_stream = cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def synchronize(self) -> None:
        with torch.cuda.device(self.device):
            library.driver()("cuStreamSynchronize", self.cuda_stream)

    def query(self) -> bool:
        with torch.cuda.device(self.device):
            return library.driver().query("cuStreamQuery", self.cuda_stream)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return (self.cuda_stream, self.device) == (other.cuda_stream, other.device)

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    def __init__(self, stream_ptr: int, device: Any = None, **_: object) -> None:  # noqa: ANN401
        super().__init__(device, cuda_stream=stream_ptr)


class Event:
    """An event, created on the stream's device when it is first recorded."""

    def __init__(self, enable_timing: bool = False, *_: object, **__: object) -> None:
        self._flags = 0 if enable_timing else _DISABLE_TIMING
        self.cuda_event = 0
        self.device: torch.device | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        with torch.cuda.device(stream.device):
            if not self.cuda_event:
                made = ctypes.c_uint64()
                library.driver()("cuEventCreate", ctypes.byref(made), self._flags)
                self.cuda_event, self.device = made.value, stream.device
            library.driver()("cuEventRecord", self.cuda_event, stream.cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        if self.cuda_event:
            with torch.cuda.device(stream.device):
                library.driver()("cuStreamWaitEvent", stream.cuda_stream, self.cuda_event, 0)

    def query(self) -> bool:
        if not self.cuda_event:
            return True
        with torch.cuda.device(self.device):
            return library.driver().query("cuEventQuery", self.cuda_event)

    def synchronize(self) -> None:
        if self.cuda_event:
            with torch.cuda.device(self.device):
                library.driver()("cuEventSynchronize", self.cuda_event)

    def elapsed_time(self, end: Event) -> float:
        milliseconds = ctypes.c_float()
        with torch.cuda.device(self.device):
            library.driver()(
                "cuEventElapsedTime", ctypes.byref(milliseconds), self.cuda_event, end.cuda_event
            )
        return milliseconds.value

    def __del__(self) -> None:
        if self.cuda_event:
            with contextlib.suppress(Exception):
                library.driver()("cuEventDestroy_v2", self.cuda_event)


def current_stream(device: Any = None) -> Stream:  # noqa: ANN401
    ordinal = ordinal_of(device)
    handle = tensor.native().cuda_double_current_stream(ordinal)
    return Stream(ordinal, cuda_stream=handle)


def default_stream(device: Any = None) -> Stream:  # noqa: ANN401
    return Stream(ordinal_of(device), cuda_stream=0)


def set_stream(stream: Stream) -> None:
    tensor.native().cuda_double_set_current_stream(stream.device.index, stream.cuda_stream)
    set_device(stream.device)


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Make a stream and its device current inside a with block."""
    if stream is None:
        yield
        return
    before = current_stream(stream.device)
    with torch.cuda.device(stream.device):
        set_stream(stream)
        try:
            yield
        finally:
            set_stream(before)


def is_current_stream_capturing() -> bool:
    return tensor.is_capturing(current_device())


class Future(torch.futures.Future[T]):
    """torch.futures.Future with CUDA devices: wait() makes the current streams wait."""

    def __init__(self, *, devices: Any = None) -> None:  # noqa: ANN401
        super().__init__()
        self._ordinals = [ordinal_of(d) for d in devices or () if torch.device(d).type == "cuda"]
        self._events: list[Event] = []

    def set_result(self, result: Any) -> None:  # noqa: ANN401
        self._events = [current_stream(ordinal).record_event() for ordinal in self._ordinals]
        super().set_result(result)

    def wait(self) -> Any:  # noqa: ANN401
        result = super().wait()
        for event, ordinal in zip(self._events, self._ordinals, strict=True):
            event.wait(current_stream(ordinal))
        return result


# Graphs


class CUDAGraph:
    """A graph of the work captured on a stream. It keeps its memory."""

    _MODES: ClassVar[dict[str, int]] = {"global": 0, "thread_local": 1, "relaxed": 2}

    def __init__(self, keep_graph: bool = False) -> None:
        self._stream: Stream | None = None
        self._executable = 0

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        self._stream = current_stream()
        mode = self._MODES[capture_error_mode]
        library.driver()("cuStreamBeginCapture_v2", self._stream.cuda_stream, mode)

    def capture_end(self) -> None:
        assert self._stream is not None
        graph, executable = ctypes.c_uint64(), ctypes.c_uint64()
        library.driver()("cuStreamEndCapture", self._stream.cuda_stream, ctypes.byref(graph))
        library.driver()("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph.value, 0)
        library.driver()("cuGraphDestroy", graph.value)
        self._executable = executable.value

    def replay(self) -> None:
        library.driver()("cuGraphLaunch", self._executable, current_stream().cuda_stream)

    def reset(self) -> None:
        executable, self._executable = self._executable, 0
        if executable:
            library.driver()("cuGraphExecDestroy", executable)

    def pool(self) -> tuple[int, int]:
        return 0, id(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.reset()


@contextlib.contextmanager
def graph(
    cuda_graph: CUDAGraph,
    pool: object = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:
    """Capture a with block as torch does: on a side stream, after all work of the device."""
    synchronize()
    gc.collect()
    with torch.cuda.stream(stream or Stream()):
        cuda_graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        finally:
            cuda_graph.capture_end()


# Factories


class _State(threading.local):
    default: torch.device | None = None  # set by torch.set_default_device, if it is a CUDA device


_state = _State()


def _is_cuda(device: Any) -> bool:  # noqa: ANN401
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return device is not None and torch.device(device).type == "cuda"


_COPIES = {"as_tensor", "asarray", "tensor"}  # functions that take a tensor argument


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        device = kwargs.get("device")
        if args and isinstance(args[0], CudaTensor) and function.__name__ in _COPIES:
            device = args[0].device if device is None else torch.device(device)
            copy = function.__name__ == "tensor"
            return args[0].to(device, kwargs.get("dtype"), copy=copy)
        if device is None and _state.default is not None and _takes_default(function, args):
            device = _state.default
        if not _is_cuda(device):
            return function(*args, **kwargs)
        ordinal = ordinal_of(device)
        args = tuple(a.cpu() if isinstance(a, CudaTensor) else a for a in args)
        kwargs = {**kwargs, "device": "cpu"}
        if kwargs.pop("pin_memory", False):
            raise RuntimeError("Only dense CPU tensors can be pinned")
        made = function(*args, **kwargs)
        if function.__name__.startswith("empty"):
            empty = tensor.empty_strided(made.shape, made.stride(), made.dtype, ordinal)
            return empty.requires_grad_(made.requires_grad)
        return to_device(made, ordinal)

    call._double_of = function
    return call


def _takes_default(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    # *_like() and copies of a tensor stay on its device.
    return not (args and isinstance(args[0], torch.Tensor))


def _patch_factories() -> None:
    known = {f.__name__: f for f in _device_constructors() if hasattr(f, "__name__")}
    names = [*known, *(f"{n}_like" for n in ("empty", "full", "ones", "rand", "randn", "zeros"))]
    for name in names:
        original = getattr(torch, name, None)
        if original is not None and not hasattr(original, "_double_of"):
            setattr(torch, name, _factory(original))


def _patch_tensor() -> None:
    plain_to = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        device, dtype, _, _ = tensor._parse_to(args, kwargs)
        if device is None or device.type != "cuda" or isinstance(self, CudaTensor):
            return plain_to(self, *args, **kwargs)
        return to_device(plain_to(self, dtype or self.dtype), ordinal_of(device))

    def cuda(self: torch.Tensor, device: Any = None, *_: object, **__: object) -> torch.Tensor:  # noqa: ANN401
        return to_device(self, ordinal_of(device))

    torch.Tensor.to = to
    torch.Tensor.cuda = cuda


def _patch_default_device() -> None:
    plain_set, plain_get = torch.set_default_device, torch.get_default_device

    def set_default_device(device: Any) -> None:  # noqa: ANN401
        cuda = _is_cuda(device)
        _state.default = torch.device("cuda", ordinal_of(device)) if cuda else None
        plain_set(None if cuda else device)

    def get_default_device() -> torch.device:
        return _state.default or plain_get()

    torch.set_default_device = set_default_device
    torch.get_default_device = get_default_device


def _patch_dlpack() -> None:
    plain = tensor.plain_from_dlpack

    def from_dlpack(ext_tensor: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        if isinstance(ext_tensor, torch.Tensor) or not hasattr(ext_tensor, "__dlpack_device__"):
            return plain(ext_tensor, **kwargs)
        kind, ordinal = ext_tensor.__dlpack_device__()
        if kind != 2:
            return plain(ext_tensor, **kwargs)
        current = tensor.native().cuda_double_current_stream(ordinal)
        return tensor.adopt(ext_tensor.__dlpack__(stream=current or 1))

    torch.from_dlpack = from_dlpack
    torch.utils.dlpack.from_dlpack = from_dlpack


STAND_INS: dict[str, Any] = {
    "CUDAGraph": CUDAGraph,
    "Event": Event,
    "ExternalStream": ExternalStream,
    "Stream": Stream,
    "current_device": current_device,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "device": device,
    "device_count": device_count,
    "empty_cache": lambda: None,
    "get_device_capability": lambda device=None: (9, 0),
    "get_device_name": lambda device=None: "CUDA test double",
    "graph": graph,
    "graph_pool_handle": lambda: (0, 0),
    "init": lambda: None,
    "is_available": lambda: device_count() > 0,
    "is_current_stream_capturing": is_current_stream_capturing,
    "is_initialized": lambda: True,
    "set_device": set_device,
    "set_stream": set_stream,
    "stream": stream,
    "synchronize": synchronize,
    "_lazy_init": lambda: None,
}


def stop() -> None:
    """Stop kernels before the interpreter ends."""
    library.driver().library.cuda_double_stop_kernels()


@functools.cache
def activate() -> None:
    """Install the stand-ins, once per process."""
    tensor.install_exchange_api()
    for name, stand_in in STAND_INS.items():
        setattr(torch.cuda, name, stand_in)
    torch.futures.Future = Future
    _patch_factories()
    _patch_tensor()
    _patch_default_device()
    _patch_dlpack()
    atexit.register(stop)
