"""A stand-in for the part of CuPy that pynccl's tests use: arrays in the double's device memory.

An array wraps a NumPy array on that memory. Its operations are kernels ordered on the current
stream. It provides ``__cuda_array_interface__`` but no DLPack.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from tests.doubles import library, torch_cuda

__all__ = ["activate"]


class _State(threading.local):
    """The current streams by device, and the allocator."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.allocator: Callable[[int], MemoryPointer] | None = None


_state = _State()


class Device:
    """A device. A with block or use() makes it current."""

    def __init__(self, device: int | None = None) -> None:
        self.id = torch_cuda.current_device() if device is None else int(device)
        self._scopes: list[torch_cuda.device] = []

    def use(self) -> None:
        torch_cuda.set_device(self.id)

    def __enter__(self) -> Device:
        self._scopes.append(torch_cuda.device(self.id))
        self._scopes[-1].__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._scopes.pop().__exit__()


class Stream:
    """A stream of the current device. A with block makes it current."""

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.device_id = torch_cuda.current_device()
        self.ptr = 0
        self._before: list[Stream | None] = []
        if not null:
            Device(self.device_id).use()
            self.ptr = library.driver().new("cuStreamCreate", int(non_blocking))

    def synchronize(self) -> None:
        library.driver()("cuStreamSynchronize", self.ptr)

    def begin_capture(self) -> None:
        relaxed = 2
        library.driver()("cuStreamBeginCapture_v2", self.ptr, relaxed)

    def end_capture(self) -> Graph:
        return Graph(library.driver().end_capture(self.ptr))

    def __enter__(self) -> Stream:
        self._before.append(_state.streams.get(self.device_id))
        _state.streams[self.device_id] = self
        return self

    def __exit__(self, *_: object) -> None:
        before = self._before.pop()
        if before is None:
            del _state.streams[self.device_id]
        else:
            _state.streams[self.device_id] = before


class Graph:
    def __init__(self, graph: int) -> None:
        self._graph = graph
        self._executable = library.driver().new("cuGraphInstantiateWithFlags", graph, 0)

    def launch(self, stream: Stream | None = None) -> None:
        library.driver()("cuGraphLaunch", self._executable, (stream or get_current_stream()).ptr)

    def __del__(self) -> None:
        library.driver()("cuGraphExecDestroy", self._executable)
        library.driver()("cuGraphDestroy", self._graph)


def get_current_stream(device_id: int | None = None) -> Stream:
    ordinal = torch_cuda.current_device() if device_id is None else device_id
    return _state.streams.get(ordinal) or Stream(null=True)


class MemoryPointer:
    """Device memory that returns to its allocator."""

    def __init__(self, ptr: int, device: int, release: Callable[[], None]) -> None:
        self.ptr = ptr
        self.device = device
        self.device_id = device
        self._release = release

    def __del__(self) -> None:
        self._release()


class PythonFunctionAllocator:
    """Memory from two functions: malloc(size, device) and free(address, device)."""

    def __init__(
        self, malloc: Callable[[int, int], int], free: Callable[[int, int], object]
    ) -> None:
        self._malloc, self._free = malloc, free

    def malloc(self, size: int) -> MemoryPointer:
        device = torch_cuda.current_device()
        ptr = self._malloc(size, device)
        return MemoryPointer(ptr, device, lambda: _ignore(self._free(ptr, device)))


class MemoryPool:
    """Caches the segments of an allocator until free_all_blocks()."""

    def __init__(self, allocator: Callable[[int], MemoryPointer]) -> None:
        self._allocator = allocator
        self._free: list[tuple[int, MemoryPointer]] = []

    def malloc(self, size: int) -> MemoryPointer:
        found = next((kept for kept in self._free if kept[0] == size), None)
        if found is None:
            segment = self._allocator(size)
        else:
            self._free.remove(found)
            segment = found[1]
        back = lambda: self._free.append((size, segment))  # noqa: E731
        return MemoryPointer(segment.ptr, segment.device, back)

    def free_all_blocks(self, stream: object = None) -> None:
        get_current_stream().synchronize()
        self._free.clear()


@contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer]) -> Iterator[None]:
    before, _state.allocator = _state.allocator, allocator
    try:
        yield
    finally:
        _state.allocator = before


def _allocate(size: int) -> MemoryPointer:
    if _state.allocator is not None:
        return _state.allocator(size)
    stream = get_current_stream()
    double, device = library.driver().library, torch_cuda.current_device()
    ptr = double.cuda_double_allocate(device, stream.ptr, size)
    return MemoryPointer(ptr, device, lambda: double.cuda_double_free(ptr))


class ndarray:  # noqa: N801 - CuPy's name
    """An array on the current device."""

    def __init__(self, shape: Any, dtype: Any) -> None:  # noqa: ANN401
        self.dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.size = int(np.prod(shape))
        self.data = _allocate(max(self.size * self.dtype.itemsize, 1))
        memory = (ctypes.c_char * max(self.size * self.dtype.itemsize, 1)).from_address(
            self.data.ptr
        )
        self._host = np.frombuffer(memory, self.dtype, self.size).reshape(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._host.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._host.strides

    @property
    def T(self) -> ndarray:  # noqa: N802 - CuPy's name
        view = object.__new__(ndarray)
        view.dtype, view.size, view.data, view._host = (
            self.dtype,
            self.size,
            self.data,
            self._host.T,
        )
        return view

    @property
    def _c_contiguous(self) -> bool:
        return self._host.flags.c_contiguous

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            # As in CuPy, an empty array has no address.
            "data": (self.data.ptr if self.size else 0, False),
            "strides": None if self._c_contiguous else self.strides,
        }

    def fill(self, value: Any) -> None:  # noqa: ANN401
        host = self._host
        _launch("fill", [self], lambda: host.fill(value))

    def get(self) -> np.ndarray:
        with Device(self.data.device):
            get_current_stream().synchronize()
        return self._host.copy()

    def all(self) -> np.bool_:
        return self.get().all()

    def __eq__(self, other: object) -> ndarray:
        made, host = ndarray(self.shape, np.bool_), self._host
        target = made._host
        _launch("equal", [self, made], lambda: _ignore(np.equal(host, other, out=target)))
        return made

    __hash__ = None

    def __getitem__(self, index: Any) -> np.generic:  # noqa: ANN401
        return self.get()[index]

    def __bool__(self) -> bool:
        return bool(self.get())


def _ignore(_: object) -> None: ...


_kernels: dict[int, Callable[[], None]] = {}  # kept because a graph may run them again
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _run(number: int) -> None:
    _kernels[number]()


def _launch(name: str, arrays: list[ndarray], kernel: Callable[[], None]) -> None:
    number = next(_numbers)
    _kernels[number] = kernel
    addresses = (ctypes.c_void_p * len(arrays))(*(a.data.ptr for a in arrays))
    sizes = (ctypes.c_size_t * len(arrays))(*(a.size * a.dtype.itemsize for a in arrays))
    device = arrays[0].data.device
    stream = get_current_stream(device).ptr
    result = library.driver().library.cuda_double_launch(
        device, ctypes.c_uint64(stream), f"cupy.{name}".encode(), _run, ctypes.c_void_p(number),
        len(arrays), addresses, sizes,
    )  # fmt: skip
    if result:
        raise RuntimeError(f"CUDA error {result} from the launch of {name}")


def full(shape: Any, value: Any, dtype: Any = float) -> ndarray:  # noqa: ANN401
    made = ndarray(shape, dtype)
    made.fill(value)
    return made


def _elementwise(function: np.ufunc) -> Callable[..., ndarray]:
    def call(a: ndarray, b: Any, out: ndarray) -> ndarray:  # noqa: ANN401
        source, target = a._host, out._host
        _launch(function.__name__, [a, out], lambda: _ignore(function(source, b, out=target)))
        return out

    return call


def activate() -> None:
    """Make ``import cupy`` return the stand-in."""
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    ndarray.__module__ = "cupy"
    members: dict[str, Any] = {
        "add": _elementwise(np.add),
        "cuda": cuda,
        "empty": ndarray,
        "float32": np.float32,
        "full": full,
        "multiply": _elementwise(np.multiply),
        "ndarray": ndarray,
        "ones": lambda shape, dtype=float: full(shape, 1, dtype),
        "zeros": lambda shape, dtype=float: full(shape, 0, dtype),
    }
    of_cuda = (Device, Graph, MemoryPointer, MemoryPool, PythonFunctionAllocator, Stream)
    members_of_cuda = {member.__name__: member for member in of_cuda}
    members_of_cuda["get_current_stream"] = get_current_stream
    members_of_cuda["using_allocator"] = using_allocator
    for module, contents in ((cupy, members), (cuda, members_of_cuda)):
        for name, member in contents.items():
            setattr(module, name, member)
    cupy.__path__ = []
    cupy.__spec__ = ModuleSpec("cupy", None)
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda})
