"""Stand-ins for torch.cuda on the double, whose CUDA device of torch's own tensors is in C++
(cuda/torch/device.cpp): the parts that a build of torch without CUDA lacks.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from tests.doubles import library

__all__ = ["activate"]

_NON_BLOCKING = 1


def ordinal_of(device: torch.device | int | str | None) -> int:
    """The number of a CUDA device, by default of the current one."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def device_count() -> int:
    return library.driver().new("cuDeviceGetCount")


def current_device() -> int:
    """The device of the current context, or 0 in a thread without one, as in the CUDA runtime."""
    driver = library.driver()
    return driver.new("cuCtxGetDevice") if driver.new("cuCtxGetCurrent") else 0


def set_device(device: Any) -> None:  # noqa: ANN401
    ordinal = ordinal_of(device)
    if ordinal >= 0:
        library.use(ordinal)


class device:  # noqa: N801 - torch's name
    """A device that is current inside a with block."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401
        self.idx = ordinal_of(device) if device is not None else -1
        self._before = 0

    def __enter__(self) -> None:
        self._before = library.driver().new("cuCtxGetCurrent")
        set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        if self._before:
            library.driver()("cuCtxSetCurrent", self._before)


def synchronize(device_: Any = None) -> None:  # noqa: ANN401
    with device(ordinal_of(device_)):
        library.driver()("cuCtxSynchronize")


class Stream(torch.Stream):
    """A new stream, or an existing one with cuda_stream=."""

    def __new__(
        cls,
        device: Any = None,  # noqa: ANN401
        priority: int = 0,
        *,
        cuda_stream: int | None = None,
        **_: object,
    ) -> Stream:
        ordinal = ordinal_of(device)
        if cuda_stream is None:
            arguments = _NON_BLOCKING, ctypes.c_int(priority)
            with torch.cuda.device(ordinal):
                cuda_stream = library.driver().new("cuStreamCreateWithPriority", *arguments)
        cuda = torch._C._autograd.DeviceType.CUDA.value
        return super().__new__(cls, stream_id=cuda_stream, device_index=ordinal, device_type=cuda)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream


class ExternalStream(Stream):
    def __new__(cls, stream_ptr: int, device: Any = None, **_: object) -> ExternalStream:  # noqa: ANN401
        return super().__new__(cls, device, cuda_stream=stream_ptr)


class Event(torch.Event):
    """An event, created on the stream's device when it is first recorded."""

    def __new__(cls, enable_timing: bool = False, *_: object, **__: object) -> Event:
        return super().__new__(cls, "cuda", enable_timing=enable_timing)

    @property
    def cuda_event(self) -> int:
        return self.event_id

    def elapsed_time(self, end: Event) -> float:
        milliseconds = ctypes.c_float()
        with torch.cuda.device(self.device):
            library.driver()(
                "cuEventElapsedTime", ctypes.byref(milliseconds), self.cuda_event, end.cuda_event
            )
        return milliseconds.value


def current_stream(device: Any = None) -> Stream:  # noqa: ANN401
    ordinal = ordinal_of(device)
    return Stream(ordinal, cuda_stream=library.torch_device().cuda_double_current_stream(ordinal))


def default_stream(device: Any = None) -> Stream:  # noqa: ANN401
    return Stream(ordinal_of(device), cuda_stream=0)


def set_stream(stream: Stream) -> None:
    library.torch_device().cuda_double_set_current_stream(stream.device_index, stream.cuda_stream)
    set_device(stream.device)


def is_current_stream_capturing() -> bool:
    status = ctypes.c_int()
    handle = current_stream().cuda_stream
    if handle:
        library.driver()("cuStreamIsCapturing", handle, ctypes.byref(status))
    return status.value != 0


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
        driver = library.driver()
        graph = driver.end_capture(self._stream.cuda_stream)
        self._executable = driver.new("cuGraphInstantiateWithFlags", graph, 0)
        driver("cuGraphDestroy", graph)

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


_STAND_INS: dict[str, Any] = {
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
    "synchronize": synchronize,
    "_lazy_init": lambda: None,
}


def _restore(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    """Copy an unpickled storage to its device, which a build of torch without CUDA cannot."""
    if not location.startswith("cuda"):
        return None
    data = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return data.to(location).untyped_storage()


@functools.cache
def activate() -> None:
    """Install the stand-ins, once per process."""
    torch.serialization.register_package(0, lambda _: None, _restore)
    for name, stand_in in _STAND_INS.items():
        setattr(torch.cuda, name, stand_in)
    # Stop kernels before the interpreter ends.
    atexit.register(library.driver().library.cuda_double_stop_kernels)
