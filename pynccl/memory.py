"""Memory from ncclMemAlloc for frameworks: pools for torch and CuPy, and single tensors.

Once such memory is registered with a communicator, NCCL transfers it without copying it to internal
buffers.

    pool = memory.torch_pool()
    comm.register_pool(pool)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(2**20, device="cuda")
    comm.all_reduce(tensor)

:func:`register_pool` registers every segment that the pools of this module own on the
communicator's device, and every segment allocated later, until the communicator or the registration
is closed. A segment is deregistered before it is freed. All GPU pools share one allocator per
process, so registering one pool registers all of them. Allocating a segment calls ncclCommRegister
on each registered communicator: no other thread may be using the communicator at that time. It does
not wait for other ranks.

On CPUs, frameworks have no pools. :func:`torch_empty` and :func:`numpy_empty` allocate single
tensors with ncclMemAlloc; :func:`torch_empty` works on GPUs as well.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pynccl import _C
from pynccl._C import PoolRegistration
from pynccl.libraries import load

if TYPE_CHECKING:
    import cupy
    import numpy as np
    import torch

    from pynccl._C import Communicator

__all__ = [
    "PoolRegistration",
    "cupy_pool",
    "numpy_empty",
    "register_pool",
    "torch_empty",
    "torch_pool",
]

# The arena of each pool, and the registrations of each communicator by arena.
_arenas: weakref.WeakKeyDictionary[object, _C.Arena] = weakref.WeakKeyDictionary()
_registrations: weakref.WeakKeyDictionary[Communicator, dict[_C.Arena, PoolRegistration]]
_registrations = weakref.WeakKeyDictionary()


def torch_pool() -> torch.cuda.MemPool:
    """Create a pool whose segments come from ncclMemAlloc, for ``torch.cuda.use_mem_pool``.

    Returns:
        A ``torch.cuda.MemPool``.

    Raises:
        RuntimeError: this torch is built without CUDA.
        LibraryNotFoundError: libnccl.so.2 was not found.
        MissingFunctionError: the library is older than NCCL 2.19.
    """
    import torch

    if torch.version.cuda is None:
        raise RuntimeError("torch_pool: this torch is built without CUDA; see torch_empty")
    arena = _device_arena()
    pool = torch.cuda.MemPool(_torch_allocator(arena).allocator())  # type: ignore[no-untyped-call]
    _arenas[pool] = arena
    return pool


def cupy_pool() -> cupy.cuda.MemoryPool:
    """Create a pool whose segments come from ncclMemAlloc, for ``cupy.cuda.using_allocator``.

    Use it as ``with cupy.cuda.using_allocator(pool.malloc): ...``.

    Returns:
        A ``cupy.cuda.MemoryPool``.

    Raises:
        LibraryNotFoundError: libnccl.so.2 was not found.
        MissingFunctionError: the library is older than NCCL 2.19.
    """
    import cupy

    arena = _device_arena()
    allocator = cupy.cuda.PythonFunctionAllocator(arena.allocate, arena.deallocate)

    class Pool(cupy.cuda.MemoryPool):  # type: ignore[misc]
        """A MemoryPool with weak references, which CuPy's class does not support."""

    pool = Pool(allocator.malloc)
    _arenas[pool] = arena
    return pool


@functools.cache  # never freed: pools free their memory through it
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

    Equivalent to ``comm.register_pool(pool)``. Not collective.

    Args:
        comm: an open communicator.
        pool: a pool from :func:`torch_pool` or :func:`cupy_pool`.

    Returns:
        A PoolRegistration, whose ``close()`` deregisters the memory. It remains in effect until it
        or the communicator is closed, even without a reference to it. A second call returns the
        same object.

    Raises:
        ValueError: the pool was not created by this module or belongs to another library, or the
            communicator is closed.
        NcclError: a segment cannot be registered; no segment is registered then.
        MissingFunctionError: the library is older than NCCL 2.19.
    """
    try:
        arena = _arenas[pool]
    except (KeyError, TypeError):
        raise ValueError(f"pool: {pool!r} is not from pynccl.memory") from None
    if arena.library is not comm.library:
        raise ValueError(
            f"pool: it belongs to {arena.library.path}, the communicator to {comm.library.path}"
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
    """Allocate an uninitialized torch tensor with ncclMemAlloc, on either provider.

    The memory is freed with the last tensor that uses it.

    Args:
        comm: the communicator, on whose device the tensor is allocated.
        shape: the shape in elements, an integer or a sequence of integers.
        dtype: a torch dtype or a name, supported by NCCL.

    Returns:
        A contiguous ``torch.Tensor``.

    Raises:
        TypeError, ValueError: an invalid argument.
        MissingFunctionError: the library is older than NCCL 2.19.
        NcclError: the memory cannot be allocated.
    """
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(comm.mem_alloc(shape, dtype))


def numpy_empty(
    comm: Communicator,
    shape: int | Sequence[int],
    dtype: Any = "float32",  # noqa: ANN401
) -> np.ndarray[Any, Any]:
    """Allocate an uninitialized NumPy array with ncclMemAlloc; hostnccl only.

    The memory is freed with the last array that uses it.

    Args:
        comm: a hostnccl communicator.
        shape: the shape in elements, an integer or a sequence of integers.
        dtype: a NumPy dtype or a name, supported by NumPy and NCCL.

    Returns:
        A contiguous ``numpy.ndarray``.

    Raises:
        TypeError, ValueError: an invalid argument.
        BufferError, RuntimeError: the communicator is on a GPU, or NumPy lacks the dtype.
        NcclError: the memory cannot be allocated.
    """
    import numpy as np

    return np.from_dlpack(comm.mem_alloc(shape, dtype))
