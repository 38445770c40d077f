"""Memory from ncclMemAlloc where a framework allocates: pools for torch and CuPy, tensors on CPUs.

NCCL moves such memory without copying it to buffers of its own once it is registered with a
communicator.

    pool = memory.torch_pool()
    comm.register_pool(pool)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(2**20, device="cuda")
    comm.all_reduce(tensor)

What is promised: every segment that the pools of this module hold on the communicator's device is
registered from :func:`register_pool` on, and every later one with its allocation, until the
communicator or the registration is closed; a segment is deregistered before it is freed. All pools
for GPUs draw on one allocator of the process, so that registering one of them registers them all.
An allocation that needs a new segment is a call on each communicator that follows: like every call
on it, it must not run beside another one in another thread. Nobody waits for other ranks in it.

On CPUs frameworks have no such pools. There :func:`torch_empty` and :func:`numpy_empty` give
tensors over memory from ncclMemAlloc, one at a time; they work on GPUs as well.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pynccl import _C
from pynccl.libraries import load

if TYPE_CHECKING:
    import cupy
    import numpy as np
    import torch

    from pynccl._C import Communicator, PoolRegistration

__all__ = ["cupy_pool", "numpy_empty", "register_pool", "torch_empty", "torch_pool"]

# The arena behind each pool, and the registrations of each communicator that were not closed.
_arenas: weakref.WeakKeyDictionary[object, _C.Arena] = weakref.WeakKeyDictionary()
_registrations: weakref.WeakKeyDictionary[Communicator, dict[_C.Arena, PoolRegistration]]
_registrations = weakref.WeakKeyDictionary()


def torch_pool() -> torch.cuda.MemPool:
    """Make a pool whose segments come from ncclMemAlloc, for ``torch.cuda.use_mem_pool``.

    Raises:
        RuntimeError: this torch has no CUDA.
        LibraryNotFoundError: there is no libnccl.so.2.
        MissingFunctionError: it is older than NCCL 2.19.
    """
    import torch

    if torch.version.cuda is None:
        raise RuntimeError("torch_pool: this torch is built without CUDA; see torch_empty")
    arena = _device_arena()
    pool = torch.cuda.MemPool(_torch_allocator(arena).allocator())  # type: ignore[no-untyped-call]
    _arenas[pool] = arena
    return pool


def cupy_pool() -> cupy.cuda.MemoryPool:
    """Make a pool whose segments come from ncclMemAlloc, for ``cupy.cuda.using_allocator``.

    Use it as ``with cupy.cuda.using_allocator(pool.malloc): ...``.

    Raises:
        LibraryNotFoundError: there is no libnccl.so.2.
        MissingFunctionError: it is older than NCCL 2.19.
    """
    import cupy

    arena = _device_arena()
    allocator = cupy.cuda.PythonFunctionAllocator(arena.allocate, arena.deallocate)

    class Pool(cupy.cuda.MemoryPool):  # type: ignore[misc]
        """CuPy's own class takes no weak references."""

    pool = Pool(allocator.malloc)
    _arenas[pool] = arena
    return pool


@functools.cache  # kept to the end: pools give their memory back through it
def _torch_allocator(arena: _C.Arena) -> torch.cuda.memory.CUDAPluggableAllocator:
    import torch

    arena.serve_torch()
    return torch.cuda.memory.CUDAPluggableAllocator(
        _C.__file__, "pynccl_torch_malloc", "pynccl_torch_free"
    )


def _device_arena() -> _C.Arena:
    return _C.Arena.of(load("cuda"))


def register_pool(comm: Communicator, pool: object) -> PoolRegistration:
    """Register the memory of a pool with a communicator (ncclCommRegister).

    The same as ``comm.register_pool(pool)``. No other rank takes part.

    Args:
        comm: an open communicator.
        pool: from :func:`torch_pool` or :func:`cupy_pool`.

    Returns:
        A PoolRegistration, whose ``close()`` deregisters. It need not be kept: it lasts until it
        or the communicator is closed. A second call gives the same one.

    Raises:
        ValueError: the pool is not one of this module, or of another library than the
            communicator, or the communicator is closed.
        NcclError: NCCL refused a segment; nothing is registered then.
        MissingFunctionError: the library is older than NCCL 2.19.
    """
    try:
        arena = _arenas[pool]
    except (KeyError, TypeError):
        raise ValueError(f"pool: {pool!r} is not from pynccl.memory") from None
    if arena.library is not comm.library:
        raise ValueError(
            f"pool: its memory is of {arena.library.path}, the communicator of {comm.library.path}"
        )
    return _follow(comm, arena)


def _follow(comm: Communicator, arena: _C.Arena) -> PoolRegistration:
    registrations = _registrations.setdefault(comm, {})
    known = registrations.get(arena)
    if known is None or known.closed:
        registrations[arena] = known = _C.PoolRegistration(arena, comm)
    return known


def torch_empty(
    comm: Communicator, shape: int | Sequence[int], dtype: torch.dtype | str = "float32"
) -> torch.Tensor:
    """Make a torch tensor over memory from ncclMemAlloc, not initialised, on either provider.

    The memory is freed with the last tensor over it.

    Args:
        comm: its device is the tensor's.
        shape: elements, an integer or a sequence.
        dtype: a torch dtype or a name.
    """
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(comm.mem_alloc(shape, dtype))


def numpy_empty(
    comm: Communicator,
    shape: int | Sequence[int],
    dtype: Any = "float32",  # noqa: ANN401
) -> np.ndarray[Any, Any]:
    """Make a NumPy array over memory from ncclMemAlloc, not initialised; on hostnccl.

    The memory is freed with the last array over it.

    Args:
        comm: a communicator of hostnccl.
        shape: elements, an integer or a sequence.
        dtype: a NumPy dtype or a name; one that NumPy itself has.

    Raises:
        BufferError: the communicator works on GPUs, or NumPy has no such dtype.
    """
    import numpy as np

    return np.from_dlpack(comm.mem_alloc(shape, dtype))
