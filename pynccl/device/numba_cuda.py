"""Communication functions for numba-cuda kernels: :mod:`pynccl.device.numba` for GPUs.

    from pynccl.device import numba_cuda as peers

    @cuda.jit
    def kernel(pointers, signals, rank, nranks, out):
        peers.barrier(signals, rank, nranks, cuda.blockIdx.x, 0)
        x = peers.pointer(peers.peer(pointers, (rank + 1) % nranks), np.float32)
        out[cuda.grid(1)] = x[cuda.grid(1)]

All threads of a block call the barrier; the other functions act per thread. To signal the stores of
a whole block, one thread calls signal() after ``cuda.syncthreads()``; to wait, one thread calls
wait() before it. A wait ends only with its signal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda, types
from numba.cuda.extending import intrinsic

__all__ = [
    "barrier",
    "fetch_add",
    "load_acquire",
    "peer",
    "pointer",
    "signal",
    "store_release",
    "wait",
    "word",
]

_WORD = ir.IntType(64)


def _is_address(address: Any) -> bool:
    return str(address) in ("int64", "uint64")


def _assembly(code: str, constraints: str, result: ir.Type) -> Any:
    """Return a code generator for an intrinsic that is one instruction on global memory."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(result, [_WORD] * len(args))
        value = builder.asm(kind, code, constraints, args, side_effect=True)
        return context.get_dummy_value() if isinstance(result, ir.VoidType) else value

    return generate


@intrinsic
def pointer(typing: Any, address: Any, dtype: Any) -> Any:
    """Return the memory at an address as a pointer, indexed like a one-dimensional array.

    Args:
        address: a multiple of the size of an element.
        dtype: the type of the elements, such as ``np.float32``.

    Returns:
        The pointer; it has no length.
    """
    kind = getattr(dtype, "instance_type", None)
    if kind is None or not _is_address(address):
        return None
    result = types.CPointer(kind)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(result))

    return result(address, dtype), generate


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """See :func:`pynccl.device.numba.load_acquire`. The scope is the system."""
    code = "ld.acquire.sys.global.s64 $0, [$1];"
    generate = _assembly(code, "=l,l,~{memory}", _WORD)
    return (types.int64(address), generate) if _is_address(address) else None


@intrinsic
def store_release(typing: Any, address: Any, value: Any) -> Any:
    """See :func:`pynccl.device.numba.store_release`. The scope is the system."""
    code = "st.release.sys.global.s64 [$0], $1;"
    generate = _assembly(code, "l,l,~{memory}", ir.VoidType())
    return (types.void(address, types.int64), generate) if _is_address(address) else None


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """See :func:`pynccl.device.numba.fetch_add`. The scope is the system."""
    code = "atom.acq_rel.sys.global.add.u64 $0, [$1], $2;"
    generate = _assembly(code, "=l,l,l,~{memory}", _WORD)
    return (types.int64(address, types.int64), generate) if _is_address(address) else None


@cuda.jit(device=True)
def peer(pointers, rank):
    """See :func:`pynccl.device.numba.peer`. 0 if loads and stores cannot reach the peer."""
    return np.int64(pointers[rank])


@cuda.jit(device=True)
def word(signals, rank, index):
    """See :func:`pynccl.device.numba.word`."""
    return np.int64(signals[rank]) + 8 * np.int64(index)


@cuda.jit(device=True)
def signal(signals, rank, index, value):
    """See :func:`pynccl.device.numba.signal`. All arguments are required."""
    fetch_add(word(signals, rank, index), np.int64(value))


@cuda.jit(device=True)
def wait(signals, rank, value, index):
    """See :func:`pynccl.device.numba.wait`. There is no time limit."""
    address = word(signals, rank, index)
    seen = load_acquire(address)
    while seen < value:
        seen = load_acquire(address)
    return seen


@cuda.jit(device=True)
def barrier(signals, rank, nranks, index, offset):
    """See :func:`pynccl.device.numba.barrier`. All threads of one block per rank take part."""
    cuda.syncthreads()
    if cuda.threadIdx.x + cuda.threadIdx.y + cuda.threadIdx.z == 0:
        first = offset + index * (nranks + 1)
        count = word(signals, rank, first + nranks)
        epoch = load_acquire(count) + 1
        for step in range(nranks):
            signal(signals, (rank + step) % nranks, first + rank, 1)
        for source in range(nranks):
            wait(signals, rank, epoch, first + source)
        store_release(count, epoch)
    cuda.syncthreads()
