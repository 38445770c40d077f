"""The rows of benchmarks.calls: a statement for each library, over the no-op NCCL.

All objects are created beforehand, so the statement is what a user writes in a loop: the call,
without a Python function around it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
import sysconfig
import tempfile
import timeit
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from benchmarks import kernels
from benchmarks.engines import engine
from pynccl import _C, nccl, raw
from tools import noop

__all__ = [
    "ALL_REDUCE",
    "ASYNC",
    "EXCHANGE",
    "LIBRARIES",
    "LOOP",
    "PROFILER",
    "CannotMeasureError",
    "Row",
    "rows",
]

ALL_REDUCE = "all_reduce"
ASYNC = "all_reduce, async_op=True, and wait"
EXCHANGE = "7 sends + 7 receives"
PROFILER = "what NCCL's profiler adds to an all_reduce: calls of the plugin, without NCCL"
LOOP = "empty loop"

_NRANKS = 8
_OTHERS = range(1, _NRANKS)


class _Store(Store):
    """A store with the entries of the other ranks: those of this one, rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._values[key] = value

    def get(self, key: str) -> bytes:
        of_rank_0 = f"{key.rpartition('/')[0]}/0"
        return self._values.get(key) or self._values.get(of_rank_0, bytes(128))

    def add(self, key: str, value: int) -> int:
        self._values[key] = b"%d" % (int(self._values.get(key, b"0")) + value)
        return int(self._values[key])

    def check(self, keys: list[str]) -> bool:
        return all(f"{key.rpartition('/')[0]}/0" in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass

    def clone(self) -> _Store:
        return self


_STORE = _Store()  # C++ keeps no reference to the Python object


class CannotMeasureError(Exception):
    """The library cannot be measured here, for the reason in the text."""


@dataclass(frozen=True)
class Row:
    """A statement to measure.

    Attributes:
        name: the library and its call.
        operation: ALL_REDUCE, ASYNC, EXCHANGE, PROFILER or LOOP.
        timer: runs the statement.
        around: the context of a sample.
        most: the maximum number of calls of a sample.
    """

    name: str
    operation: str
    timer: timeit.Timer
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    most: int = sys.maxsize


def _row(name: str, operation: str, statement: str, **names: object) -> Row:
    return Row(name, operation, timeit.Timer(statement, globals=names))


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        _C.start_recording(f"{folder}/calls", 1 << 30)
        try:
            yield
        finally:
            _C.stop_recording()


# Calls that fit into a thread's buffer of a recording or trace, after the warm-up.
_UNTIL_TAKEN = 800


def _pynccl() -> Iterator[Row]:
    path = noop.library()
    library = raw.load(path)
    comm = nccl.Communicator(_NRANKS, nccl.get_unique_id(path), 0, provider=str(path))
    tensor = torch.zeros(8)
    address = tensor.data_ptr()
    yield _row(
        "pynccl.raw, integers",
        ALL_REDUCE,
        "all_reduce(address, address, 8, 7, 0, comm, 0)",
        all_reduce=library.ncclAllReduce,
        address=address,
        comm=comm.handle,
    )
    call = "pynccl Communicator, tensor"
    names: dict[str, object] = {"all_reduce": comm.all_reduce, "tensor": tensor}
    yield _row(call, ALL_REDUCE, "all_reduce(tensor)", **names)
    for name, around in (("a recording is on", _recording), ("a trace is on", nccl.trace)):
        timer = timeit.Timer("all_reduce(tensor)", globals=names)
        yield Row(f"{call}, {name}", ALL_REDUCE, timer, around, _UNTIL_TAKEN)
    sends = [(torch.zeros(8), peer) for peer in _OTHERS]
    receives = [(torch.zeros(8), peer) for peer in _OTHERS]
    exchange = """\
with group():
    for tensor, peer in sends:
        send(tensor, peer)
    for tensor, peer in receives:
        recv(tensor, peer)"""
    names = {"send": comm.send, "recv": comm.recv, "sends": sends, "receives": receives}
    yield _row("pynccl group(), tensors", EXCHANGE, exchange, group=nccl.group, **names)
    with nccl.plan() as plan:
        for tensor, peer in sends:
            comm.send(tensor, peer)
        for tensor, peer in receives:
            comm.recv(tensor, peer)
    yield _row("pynccl plan, called", EXCHANGE, "plan()", plan=plan)


class _OnlyDlpack:
    """An object with DLPack's protocol only."""

    def __init__(self, array: Any) -> None:  # noqa: ANN401
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def _all_reduce_of(name: str, array: object, *, out: object = None) -> Row:
    path = noop.library()
    comm = nccl.Communicator(_NRANKS, nccl.get_unique_id(path), 0, provider=str(path))
    statement = "all_reduce(array)" if out is None else "all_reduce(array, out=out)"
    return _row(name, ALL_REDUCE, statement, all_reduce=comm.all_reduce, array=array, out=out)


def _arrays() -> Iterator[Row]:
    import numpy as np

    yield _all_reduce_of("pynccl Communicator, NumPy array", np.zeros(8, np.float32))
    with contextlib.suppress(ImportError):
        import ml_dtypes

        yield _all_reduce_of(
            "pynccl Communicator, ml_dtypes array", np.zeros(8, ml_dtypes.bfloat16)
        )
    yield _all_reduce_of("pynccl Communicator, raw DLPack", _OnlyDlpack(np.zeros(8, np.float32)))


def _jax() -> Iterator[Row]:
    import jax  # type: ignore[import-not-found,unused-ignore]
    import numpy as np

    array = jax.device_put(np.zeros(8, np.float32), jax.devices("cpu")[0])
    # Arrays of JAX are immutable.
    out = np.zeros(8, np.float32)
    yield _all_reduce_of("pynccl Communicator, JAX array, out=", array, out=out)


def _mpi4py() -> Iterator[Row]:
    """A world of one rank, because there is no no-op MPI."""
    import numpy as np
    from mpi4py import MPI

    yield _row(
        "mpi4py of one rank, NumPy array",
        ALL_REDUCE,
        "all_reduce(in_place, array)",
        all_reduce=MPI.COMM_SELF.Allreduce,
        in_place=MPI.IN_PLACE,
        array=np.zeros(8, np.float32),
    )


def _floor() -> Iterator[Row]:
    if not kernels.c_compiler():
        raise CannotMeasureError("no C compiler was found")
    libinfo = importlib.import_module("tvm_ffi.libinfo")
    module = _extension("floor.c", f"-I{libinfo.find_dlpack_include_path()}")
    yield _row(
        "the floor: exchange API and GIL alone",
        ALL_REDUCE,
        "call(tensor)",
        call=module.call,
        tensor=torch.zeros(8),
    )


def _extension(file: str, *options: str, compiler: str = "") -> Any:  # noqa: ANN401
    """Compile and import a module of this folder."""
    include = f"-I{sysconfig.get_path('include')}"
    with tempfile.TemporaryDirectory(prefix="pynccl-bench-") as folder:
        path = kernels.shared_library(
            kernels.OWN / file, Path(folder), include, *options, compiler=compiler
        )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise CannotMeasureError(f"Python cannot load {path.name}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _profiling() -> Iterator[None]:
    from pynccl._internal import plugin

    plugin.start_profile()
    try:
        yield
    finally:
        plugin.stop_profile(sys.maxsize)  # reads no events


def _profiler() -> Iterator[Row]:
    """NCCL's calls of the plugin, because the no-op library loads none and NCCL needs a GPU."""
    from pynccl._internal import plugin

    compiler = os.environ.get("CXX", "c++")
    options = ("-std=c++20", f"-I{kernels.OWN.parent / 'csrc'}")
    module = _extension("profiler.cpp", *options, compiler=compiler)
    module.load(str(plugin.path()))
    for name, around, channels, steps in (
        ("no trace", contextlib.nullcontext, 16, 8),
        ("a trace, 1 channel", _profiling, 1, 0),
        ("a trace, 16 channels", _profiling, 16, 0),
        ("a trace, 16 channels with 8 transfers each", _profiling, 16, 8),
    ):
        timer = timeit.Timer(f"call({channels}, {steps})", globals={"call": module.call})
        yield Row(f"pynccl's profiler plugin, {name}", PROFILER, timer, around)


def _mirror() -> Iterator[Row]:
    import pynccl

    pynccl.init_process_group(
        "host", store=_STORE, rank=0, world_size=_NRANKS, timeout=timedelta(seconds=10)
    )
    yield from _distributed("pynccl", pynccl)


def _fake() -> Iterator[Row]:
    _begin_with_fake()
    yield from _distributed(f"torch.distributed {engine(None, torch.device('cpu'))}", dist)


def _backend() -> Iterator[Row]:
    """The backend of torch.distributed, in a group beside torch's fake one."""
    import pynccl.c10d  # noqa: F401 - it registers the backend

    _begin_with_fake()
    group = dist.new_group(backend="pynccl")
    yield from _distributed(f"torch.distributed {engine(group, torch.device('cpu'))}", dist, group)


def _begin_with_fake() -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers it

    if not dist.is_initialized():
        dist.init_process_group("fake", store=_STORE, rank=0, world_size=_NRANKS)


def _distributed(name: str, module: Any, group: object = None) -> Iterator[Row]:  # noqa: ANN401 two modules alike
    """Rows of the default group, or of one that the statements name."""
    given = "" if group is None else ", group=group"
    exchange = f"""\
operations = [P2POp(isend, tensor, peer{given}) for tensor, peer in sends]
operations += [P2POp(irecv, tensor, peer{given}) for tensor, peer in receives]
for work in batch_isend_irecv(operations):
    work.wait()"""
    statements = (
        ("all_reduce, tensor", ALL_REDUCE, f"all_reduce(tensor{given})"),
        ("all_reduce, async_op=True", ASYNC, f"all_reduce(tensor{given}, async_op=True).wait()"),
        ("batch_isend_irecv", EXCHANGE, exchange),
    )
    functions = ("all_reduce", "P2POp", "isend", "irecv", "batch_isend_irecv")
    names: dict[str, object] = {name: getattr(module, name) for name in functions}
    names["sends"] = [(torch.zeros(8), peer) for peer in _OTHERS]
    names["receives"] = [(torch.zeros(8), peer) for peer in _OTHERS]
    for call, operation, statement in statements:
        yield _row(
            f"{name} {call}", operation, statement, tensor=torch.zeros(8), group=group, **names
        )


def _cupy() -> Iterator[Row]:
    from cupy.cuda import nccl as cupy_nccl

    if not hasattr(cupy_nccl, "NcclCommunicator"):
        raise CannotMeasureError(
            "CuPy found no libnccl.so.2, which benchmarks.calls puts in its way"
        )
    comm = cupy_nccl.NcclCommunicator(_NRANKS, cupy_nccl.get_unique_id(), 0)
    buffer = torch.zeros(8)
    yield _row(
        "cupy.cuda.nccl, integers",
        ALL_REDUCE,
        "all_reduce(address, address, 8, 7, 0, 0)",
        all_reduce=comm.allReduce,
        address=buffer.data_ptr(),
        buffer=buffer,
    )
    yield _row(
        "cupy.cuda.nccl, of a tensor",
        ALL_REDUCE,
        "all_reduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), 7, 0, 0)",
        all_reduce=comm.allReduce,
        tensor=buffer,
    )


def _nccl4py() -> Iterator[Row]:
    core = importlib.import_module("nccl.core")
    comm = core.Communicator.init(_NRANKS, 0, core.get_unique_id())
    tensor = torch.zeros(8, device="cuda" if torch.cuda.is_available() else "cpu")
    if not tensor.is_cuda:
        # Its check that a buffer is on the communicator's device would ask the driver once for that
        # device. In its place: what it finds for a CPU tensor.
        comm._device = types.SimpleNamespace(device_id=None)
    yield _row(
        "nccl4py, tensors",
        ALL_REDUCE,
        "all_reduce(tensor, tensor, op)",
        all_reduce=comm.allreduce,
        tensor=tensor,
        op=core.SUM,
    )


def _ctypes() -> Iterator[Row]:
    """As in a project that needs a few of NCCL's functions."""
    function, pointer = ctypes.CDLL(str(noop.library())).ncclAllReduce, ctypes.c_void_p
    numbers = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    function.argtypes = [pointer, pointer, *numbers, pointer, pointer]

    def all_reduce(*arguments: object) -> None:
        if result := function(*arguments):
            raise RuntimeError(f"NCCL error {result}")

    buffer = torch.zeros(8)
    yield _row(
        "ctypes, a plain wrapper",
        ALL_REDUCE,
        "all_reduce(buffer(data_ptr()), buffer(data_ptr()), 8, 7, 0, comm, stream)",
        all_reduce=all_reduce,
        buffer=ctypes.c_void_p,
        data_ptr=buffer.data_ptr,
        comm=ctypes.c_void_p(1),
        stream=ctypes.c_void_p(0),
        tensor=buffer,
    )


def _wrapper() -> Iterator[Row]:
    """The class of vLLM's wrapper over pynccl, in place of ctypes."""
    from pynccl.compat.vllm import PyNcclCommunicator

    comm = PyNcclCommunicator.from_unique_id_bytes(bytes(128), 0, _NRANKS, "cpu")
    yield _row(
        "pynccl.compat.vllm, tensors",
        ALL_REDUCE,
        "all_reduce(tensor, tensor)",
        all_reduce=comm.all_reduce,
        tensor=torch.zeros(8),
    )


def _vllm() -> Iterator[Row]:
    """The wrapper of vLLM itself, which creates its communicator only with a GPU."""
    wrapper = importlib.import_module("vllm.distributed.device_communicators.pynccl")
    comm = wrapper.PyNcclCommunicator.__new__(wrapper.PyNcclCommunicator)
    tensor = torch.zeros(8)
    comm.nccl, comm.comm = wrapper.NCCLLibrary(str(noop.library())), ctypes.c_void_p(1)
    comm.device, comm.available, comm.disabled = tensor.device, True, False
    yield _row(
        "vLLM's PyNcclCommunicator, tensors",
        ALL_REDUCE,
        "all_reduce(tensor, tensor, stream=stream)",
        all_reduce=comm.all_reduce,
        tensor=tensor,
        stream=types.SimpleNamespace(cuda_stream=0),
    )


# The function that creates the rows, its module, and the command that installs it.
_PEERS: dict[str, tuple[Callable[[], Iterator[Row]], str, str]] = {
    "pynccl": (_pynccl, "pynccl", "make"),
    "arrays": (_arrays, "numpy", "pip install numpy"),
    "jax": (_jax, "jax", "pip install jax"),
    "floor": (_floor, "tvm_ffi", "pip install apache-tvm-ffi"),
    "profiler": (_profiler, "pynccl", "make"),
    "mirror": (_mirror, "pynccl.mirror", "make"),
    "torch": (_fake, "torch", "pip install torch"),
    "backend": (_backend, "pynccl.c10d", "make"),
    "cupy": (_cupy, "cupy", "pip install cupy-cuda13x"),
    "nccl4py": (_nccl4py, "nccl", "pip install nccl4py[cu13]"),
    "ctypes": (_ctypes, "ctypes", ""),
    "wrapper": (_wrapper, "pynccl.compat.vllm", "make"),
    "vllm": (_vllm, "vllm", "run this with build/integrations/vllm/bin/python"),
    "mpi4py": (_mpi4py, "mpi4py", "pip install mpi4py mpich"),
}

LIBRARIES = tuple(_PEERS)


def rows(libraries: Collection[str] = LIBRARIES) -> tuple[list[Row], dict[str, str]]:
    """Create the rows that can be measured here.

    Args:
        libraries: a subset of LIBRARIES.

    Returns:
        The rows, and the reason for each library without rows.
    """
    # The provider for CPU tensors, which is loaded once per process.
    os.environ["PYNCCL_HOSTNCCL_LIBRARY"] = str(noop.library())
    found = [_row("(the empty loop)", LOOP, "pass")]
    missing: dict[str, str] = {}
    for name, (make, module, install) in _PEERS.items():
        if name not in libraries:
            continue
        if importlib.util.find_spec(module) is None:
            missing[name] = f"not installed: {install}"
            continue
        try:
            found += make()
        except CannotMeasureError as reason:
            missing[name] = str(reason)
        except Exception as error:  # the other peers can still be measured
            missing[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return found, missing
