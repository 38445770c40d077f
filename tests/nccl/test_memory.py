"""Proves that memory pools of frameworks get their segments from ncclMemAlloc and that
communicators register them: the allocator through the C functions that torch calls, the life of
registrations, torch's and CuPy's own pools on GPUs. Tensors over such memory, tensors on GPUs,
Buffers and addresses can be reduced, and memory in use is not freed. test_array_values.py tests
arrays of every dtype, layout and alignment on CPUs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import _C, libraries, memory, nccl, raw
from tests.support import dtypes, gpu
from tests.support.blocking import in_threads
from tests.support.commands import run_python
from tests.support.memory import GUARD, HostMemory, OnlyDlpack
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tools import noop

MIB = 2**20


@pytest.fixture
def arena() -> _C.Arena:
    return _C.Arena.of(libraries.load("host"))


@on_ranks(1, fresh=True)
def test_allocator_as_torch_calls_it(rank: Rank) -> None:
    library, arena = ctypes.CDLL(_C.__file__), _C.Arena.of(libraries.load("host"))
    malloc, free = library.pynccl_torch_malloc, library.pynccl_torch_free
    malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    malloc.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    free.restype = None
    assert malloc(4096, 0, None) is None  # no arena is chosen
    free(4096, 4096, 0, None)
    for _ in range(2):
        arena.serve_torch()
    address = malloc(4096, 0, None)
    ctypes.memset(address, 7, 4096)
    assert ctypes.string_at(address, 4096) == b"\7" * 4096
    for size in (0, -1, 2**62):  # none, negative, out of memory
        assert malloc(size, 0, None) is None
    assert malloc(4096, 10**6, None) is None  # no such device
    free(None, 0, 0, None)
    free(address + 1, 4096, 0, None)  # no segment: as in cudaFree, nothing happens
    free(address, 4096, 0, None)
    with pytest.raises(ValueError, match="not the address of a segment"):
        arena.deallocate(address)  # it was returned
    with pytest.raises(ValueError, match="already use the memory of"):
        _C.Arena.of(libraries.load(str(noop.library()))).serve_torch()


def test_allocation_errors(arena: _C.Arena) -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        arena.allocate(0)
    with pytest.raises(ValueError, match="does not exist"):
        arena.allocate(10, 10**6)
    with pytest.raises(nccl.NcclError, match="ncclMemAlloc"):
        arena.allocate(2**62)
    with pytest.raises(ValueError, match="not the address of a segment"):
        arena.deallocate(4096)


def test_registration_follows_the_segments(arena: _C.Arena, comm: nccl.Communicator) -> None:
    first = arena.allocate(MIB)
    registration = memory._follow(comm, arena)
    assert registration.segments == 1
    assert memory._follow(comm, arena) is registration
    second = arena.allocate(MIB)
    assert registration.segments == 2
    addresses = in_threads(lambda: arena.allocate(MIB))
    assert registration.segments == 3
    arena.deallocate(first)
    assert registration.segments == 2
    # Collectives accept the memory.
    array = np.frombuffer((ctypes.c_float * 100).from_address(second), np.float32)
    array[:] = 3
    comm.all_reduce(array)
    assert (array == 3).all()
    registration.close()
    registration.close()
    assert (registration.segments, registration.closed) == (0, True)
    arena.deallocate(second)
    again = memory._follow(comm, arena)
    assert again is not registration
    with again:
        assert again.segments == 1
    arena.deallocate(addresses[0])


def test_registration_ends_with_the_communicator(arena: _C.Arena) -> None:
    for end in ("close", "abort"):
        comm = nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host")
        registration = memory._follow(comm, arena)
        address = arena.allocate(MIB)
        assert registration.segments == 1
        getattr(comm, end)()
        assert (registration.segments, registration.closed) == (0, True)
        other = arena.allocate(MIB)  # a closed communicator is not called
        arena.deallocate(address)
        arena.deallocate(other)
        registration.close()
        with pytest.raises(ValueError, match="closed"):
            memory._follow(comm, arena)
        # A communicator without references is not kept.
        gone = weakref.ref(comm)
        del comm, registration
        gc.collect()
        assert gone() is None


_REGISTERS_NOTHING = """
#include <stdlib.h>
int ncclMemAlloc(void** data, size_t bytes) { *data = malloc(bytes); return 0; }
int ncclMemFree(void* data) { free(data); return 0; }
int ncclCommRegister() { return 2; }  /* ncclSystemError */
int ncclCommDeregister() { return 0; }
"""


def test_a_segment_that_cannot_be_registered_is_usable(tmp_path: Path) -> None:
    """The end of the registration raises the error."""
    path = compile_nccl(tmp_path, 23200, _REGISTERS_NOTHING, with_communicators=True)
    arena = _C.Arena.of(libraries.load(path))
    with nccl.Communicator(1, bytes(128), 0, provider=path) as comm:
        registration = memory._follow(comm, arena)
        address = arena.allocate(MIB)
        assert registration.segments == 0
        with pytest.raises(nccl.NcclSystemError, match="ncclCommRegister"):
            registration.close()
        arena.deallocate(address)


def test_several_communicators_follow(arena: _C.Arena, comm: nccl.Communicator) -> None:
    with nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host") as other:
        registrations = [memory._follow(c, arena) for c in (comm, other)]
        address = arena.allocate(MIB)
        assert [r.segments for r in registrations] == [1, 1]
        registrations[0].close()
        assert [r.segments for r in registrations] == [0, 1]
        arena.deallocate(address)
        assert [r.segments for r in registrations] == [0, 0]


def test_objects_other_than_pools_are_refused(comm: nccl.Communicator) -> None:
    for pool in (object(), None, [], 3):
        with pytest.raises(ValueError, match=r"is not from pynccl\.memory"):
            comm.register_pool(pool)
    comm.all_reduce(np.ones(3))


def test_pool_of_another_library_is_refused(comm: nccl.Communicator) -> None:
    class Pool: ...

    pool = Pool()
    memory._arenas[pool] = _C.Arena.of(libraries.load(str(noop.library())))
    with pytest.raises(ValueError, match=r"libnoopnccl\.so, the communicator to"):
        comm.register_pool(pool)
    memory._arenas[pool] = _C.Arena.of(comm.library)
    with comm.register_pool(pool) as registration:
        assert isinstance(registration, _C.PoolRegistration)


def test_no_torch_pool_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="without CUDA; see torch_empty"):
        memory.torch_pool()


_OF_TORCH = pytest.mark.needs_gpu("the memory is that of torch's own caching allocator")


@pytest.mark.gpu
@pytest.mark.parametrize("framework", [pytest.param("torch", marks=_OF_TORCH), "cupy"])
@on_ranks(1, 2, provider="cuda", fresh=True)
def test_pools(rank: Rank, framework: str) -> None:
    comm, size = rank.comm, 3 * MIB
    if framework == "torch":
        import torch

        torch.cuda.set_device(rank.device or 0)
        pool = memory.torch_pool()
        registration = comm.register_pool(pool)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((size,), rank.rank + 1.0, device="cuda")
        assert len(pool.snapshot()) >= 1
        pointer, clear = tensor.data_ptr(), torch.cuda.empty_cache
    else:
        import cupy

        cupy.cuda.Device(rank.device).use()
        pool = memory.cupy_pool()
        registration = comm.register_pool(pool)
        with cupy.cuda.using_allocator(pool.malloc):
            tensor = cupy.full(size, rank.rank + 1.0, "float32")
        pointer, clear = tensor.data.ptr, pool.free_all_blocks
    assert pointer
    before = registration.segments
    assert before >= 1
    comm.all_reduce(tensor)
    assert float(tensor[-1]) == sum(range(1, rank.nranks + 1))
    del tensor
    if framework == "torch":
        del pool
    clear()
    assert registration.segments < before


@on_ranks(2, by="provider")
def test_tensors_over_nccls_memory(rank: Rank) -> None:
    import torch

    tensor = memory.torch_empty(rank.comm, (3, 5), torch.bfloat16)
    assert (tuple(tensor.shape), tensor.dtype) == ((3, 5), torch.bfloat16)
    tensor.fill_(rank.rank + 1)
    rank.comm.all_reduce(tensor)
    assert (tensor == sum(range(1, rank.nranks + 1))).all()
    if rank.provider == "host":
        array = memory.numpy_empty(rank.comm, 7, "int64")
        array[:] = rank.rank
        rank.comm.all_reduce(array)
        assert (array == sum(range(rank.nranks))).all()


def test_memory_is_freed_beside_captures(comm: nccl.Communicator) -> None:
    """The wait for the device before memory is freed would invalidate a capture."""
    stream, array = nccl.Stream("host"), np.ones(4, np.float32)
    for _ in range(20_000):
        memory.numpy_empty(comm, 4)  # freed in the background
        with nccl.capture(stream) as graph:
            comm.all_reduce(array, stream=stream)
        graph.close()


# Buffers


class _OnlyCudaArrayInterface:
    def __init__(self, tensor: Any) -> None:  # noqa: ANN401
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__
        self._tensor = tensor


def _parameter(tensor: Any) -> Any:  # noqa: ANN401
    import torch

    return torch.nn.Parameter(tensor)


# The forms in which the same memory is passed.
_FORMS: dict[str, Callable[[Any], Any]] = {
    "torch tensor": lambda tensor: tensor,
    "torch parameter": _parameter,
    "only __dlpack__": OnlyDlpack,
    "only __cuda_array_interface__": _OnlyCudaArrayInterface,
}


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_every_form_of_a_buffer(rank: Rank) -> None:
    """In place and out of place. test_array_values.py tests those of CPUs."""
    total = np.arange(5, dtype=np.float32) * sum(range(1, rank.nranks + 1))
    own = np.arange(5, dtype=np.float32) * (rank.rank + 1)
    stream = rank.stream()
    for name, form in _FORMS.items():
        for in_place in (True, False):
            source, target = rank.memory.put(own), rank.memory.put(np.zeros_like(own))
            out = None if in_place else form(target)
            rank.comm.all_reduce(form(source), out=out, stream=stream)
            stream.synchronize()
            np.testing.assert_array_equal(
                rank.memory.get(source if in_place else target), total, err_msg=name
            )


def _address(buffer: Any) -> int:  # noqa: ANN401
    address: int = buffer.ctypes.data if isinstance(buffer, np.ndarray) else buffer.data_ptr()
    return address


@on_ranks(2, by="provider")
def test_addresses(rank: Rank) -> None:
    """Integer addresses with count and with dtype in each form."""
    own = np.full(6, rank.rank + 1.0, np.float32)
    stream = rank.stream()
    for dtype in ("float32", np.float32, np.dtype(np.float32), raw.ncclFloat32):
        source, target = rank.memory.put(own), rank.memory.put(np.zeros_like(own))
        rank.comm.all_reduce(
            _address(source), out=_address(target), count=own.size, dtype=dtype, stream=stream
        )
        rank.comm.all_reduce(_address(source), count=own.size, dtype=dtype, stream=stream)
        stream.synchronize()
        total = sum(range(1, rank.nranks + 1))
        np.testing.assert_array_equal(rank.memory.get(target), np.full_like(own, total))
        np.testing.assert_array_equal(rank.memory.get(source), np.full_like(own, total))


@on_ranks(2, by="provider")
def test_allocated_buffers(rank: Rank) -> None:
    import torch

    comm = rank.comm
    buffer = comm.mem_alloc((3, 5), "float32")
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 5), "float32", 60)
    tensor = torch.from_dlpack(buffer)  # type: ignore[attr-defined]
    assert tensor.data_ptr() == buffer.ptr
    assert tensor.shape == (3, 5)
    tensor.fill_(rank.rank + 1)
    with comm.register(buffer) as registration:
        assert isinstance(registration.handle, int)
        stream = rank.stream()
        if rank.device is not None:
            torch.cuda.synchronize(rank.device)
        comm.all_reduce(buffer, stream=stream)
        stream.synchronize()
    assert (tensor.cpu() == sum(range(1, rank.nranks + 1))).all()
    # The memory lives as long as the last view of it.
    gone = weakref.ref(buffer)
    del buffer, registration
    tensor += 1
    assert gone() is not None
    del tensor
    assert gone() is None
    for dtype in (name for name in dtypes.ALL if name not in gpu.without(rank.provider)):
        allocated, gathered = comm.mem_alloc(3, dtype), comm.mem_alloc(3 * rank.nranks, dtype)
        assert allocated.nbytes == 3 * dtypes.numpy_dtype(dtype).itemsize
        comm.all_gather(allocated, out=gathered, stream=stream)
        stream.synchronize()
        allocated.close()
        with pytest.raises(ValueError, match="closed"):
            _ = allocated.ptr
    assert comm.mem_alloc(0).nbytes == 0
    with pytest.raises(ValueError, match="shape: -1 is negative"):
        comm.mem_alloc(-1)
    with pytest.raises(ValueError, match="does not fit"):
        comm.mem_alloc((2**62, 2**62), "float64")


@pytest.mark.parametrize("close", [False, True])
@on_ranks(2, by="provider")
def test_memory_in_use_is_not_freed(rank: Rank, close: bool) -> None:
    """The stream still sends from the memory when its last reference is deleted."""
    stream, received = rank.stream(), rank.memory.put(np.zeros(1000, np.float32))
    buffer = rank.comm.mem_alloc(1000, "float32")
    rank.comm.all_reduce(received, out=buffer)
    begin = threading.Event()
    stream.launch(begin.wait)
    rank.comm.all_reduce(buffer, out=received, stream=stream)
    threading.Timer(0.2, begin.set).start()
    if close:
        buffer.close()
    del buffer
    stream.synchronize()
    assert not rank.memory.get(received).any()


@on_ranks(2, by="provider", threads=True)
def test_freeing_waits_for_no_other_rank(rank: Rank) -> None:
    """The other rank's stream waits for this thread, which must not wait for that stream."""
    array = rank.memory.put(np.ones(4, np.float32))
    rank.comm.all_reduce(array)
    buffer = rank.comm.mem_alloc(4, "float32")
    stream = rank.stream()
    if rank.rank == 0:
        time.sleep(0.2)
        buffer.close()
    rank.comm.all_reduce(array, stream=stream)
    stream.synchronize()
    assert (rank.memory.get(array) == 4).all()


def test_a_forked_child_frees_memory(comm: nccl.Communicator) -> None:
    """The thread of its parent, which had memory to free, is gone."""

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:")

    stream, begin = nccl.Stream("host"), threading.Event()
    stream.launch(begin.wait)
    comm.mem_alloc(1 << 20).close()  # freed when the stream is done
    if (child := os.fork()) == 0:
        signal.alarm(60)
        with nccl.Communicator.init_all(1, provider="host")[0] as own:
            buffer = own.mem_alloc(1 << 20)
            before = mappings()
            buffer.close()
            while mappings() >= before:
                time.sleep(0.01)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    begin.set()
    stream.synchronize()


def test_a_write_outside_would_be_noticed() -> None:
    array = HostMemory().put(np.zeros(3))
    ctypes.memset(array.ctypes.data + array.nbytes + GUARD - 1, 0, 1)
    with pytest.raises(AssertionError, match="outside"):
        HostMemory().get(array)


_DELETED_AT_EXIT = """
import ctypes
from pynccl import nccl
comm = nccl.Communicator.init_all(1, provider="host")[0]
capsule = comm.mem_alloc(4).__dlpack__()
comm.close()
api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
managed = api.PyCapsule_GetPointer(capsule, b"dltensor")
used = ctypes.c_char_p(b"used_dltensor")
api.PyCapsule_SetName(capsule, used)
deleter = ctypes.c_void_p.from_address(managed + 56)  # DLManagedTensor.deleter
at_exit = ctypes.CDLL(None).__cxa_atexit
at_exit.argtypes = [ctypes.c_void_p] * 3
at_exit(deleter, managed, None)
print("end")
"""


def test_a_tensor_deleted_after_the_interpreter() -> None:
    """As by the destructor of a static object of C++."""
    ran = run_python("-c", _DELETED_AT_EXIT)
    assert (ran.returncode, ran.stdout.split()) == (0, ["end"]), ran.stderr
