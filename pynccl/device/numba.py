"""Functions for kernels compiled by Numba for CPUs that communicate through memory.

    from pynccl.device import numba as peers

    @numba.njit(nogil=True)
    def kernel(pointers, signals, rank, nranks, count):
        peers.barrier(signals, rank, nranks)
        x = peers.array(peers.peer(pointers, (rank + 1) % nranks), (count,), np.float32)

``pointers`` and ``signals`` are arrays (int64 or uint64) of the addresses of each rank's memory in
a window. Signals are int64 words, initially zero, shared with :mod:`pynccl.device.triton`.
Addresses are int64 in kernels, because Numba converts the sum of an int64 and a uint64 to a float.

Call kernels directly, or on a stream by ``stream.launch(lambda: kernel(...))``. Compile them with
``nogil=True``: otherwise a waiting rank blocks the other threads of the process. A wait that
exceeds its time limit raises TimeoutError. It does not detect that a communicator was aborted.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pynccl.device._words import barrier_words

__all__ = [
    "array",
    "barrier",
    "barrier_words",
    "fetch_add",
    "load_acquire",
    "peer",
    "put",
    "put_signal",
    "signal",
    "store_release",
    "wait",
    "word",
]

_TIMEOUT = 60.0  # seconds
_SPINS = 1000  # busy polls before yielding
_YIELDS = 100  # yielding polls before sleeping
_SLEEP = 50  # microseconds

_WORD = ir.IntType(64)


def _is_address(address: Any) -> bool:
    return isinstance(address, types.Integer) and address.bitwidth == 64


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """Convert an address to a pointer, for numba.carray."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return (types.voidptr(address), generate) if _is_address(address) else None


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """Load the int64 at an address, with acquire semantics.

    Args:
        address: a multiple of 8.

    Returns:
        The value.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8, typ=_WORD)

    return (types.int64(address), generate) if _is_address(address) else None


@intrinsic
def store_release(typing: Any, address: Any, value: Any) -> Any:
    """Store an int64 at an address, with release semantics.

    Args:
        address: a multiple of 8.
        value: the value to store.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return (types.void(address, types.int64), generate) if _is_address(address) else None


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """Atomically add to the int64 at an address, with acquire-release semantics.

    Args:
        address: a multiple of 8.
        value: the value to add.

    Returns:
        The previous value.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "acq_rel")

    return (types.int64(address, types.int64), generate) if _is_address(address) else None


def _libc(name: str, *parameters: Any) -> Any:
    """Return a function of the C library that takes and returns integers."""

    @intrinsic
    def function(typing: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [ir.Constant(ir.IntType(32), value) for value in parameters]
            kind = ir.FunctionType(ir.IntType(32), [value.type for value in values])
            callee = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(callee, values)

        return types.int32(), generate

    return function


_yield = _libc("sched_yield")
_sleep = _libc("usleep", _SLEEP)


@intrinsic
def _now(typing: Any) -> Any:
    """Return the monotonic clock in seconds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        time = cgutils.alloca_once(builder, ir.LiteralStructType([_WORD, _WORD]))
        clock = ir.IntType(32)
        kind = ir.FunctionType(ir.IntType(32), [clock, time.type])
        callee = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(callee, [ir.Constant(clock, 1), time])  # CLOCK_MONOTONIC
        seconds, nanoseconds = (
            builder.sitofp(builder.load(cgutils.gep_inbounds(builder, time, 0, i)), ir.DoubleType())
            for i in range(2)
        )
        return builder.fadd(seconds, builder.fmul(nanoseconds, ir.Constant(ir.DoubleType(), 1e-9)))

    return types.float64(), generate


@numba.njit(nogil=True)
def array(address, shape, dtype):
    """Return the memory at an address as an array, without a copy.

    Args:
        address: a multiple of the size of an element.
        shape: a tuple of integers.
        dtype: the type of the elements, such as ``np.float32``.

    Returns:
        A C-contiguous array.
    """
    return numba.carray(_pointer(address), shape, dtype)


@numba.njit(nogil=True)
def peer(pointers, rank):
    """Return the address of a peer's memory.

    Args:
        pointers: addresses by rank, int64 or uint64.
        rank: the peer.

    Returns:
        The address, int64.
    """
    return np.int64(pointers[rank])


@numba.njit(nogil=True)
def word(signals, rank, index):
    """Return the address of a word in a rank's signal memory.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        rank: the rank.
        index: the index of the word.

    Returns:
        The address, int64.
    """
    return np.int64(signals[rank]) + 8 * np.int64(index)


@numba.njit(nogil=True)
def signal(signals, rank, index=0, value=1):
    """Signal a peer, with release semantics: previous stores become visible to it.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        rank: the peer.
        index: the index of the word in its signal memory.
        value: the value to add to the word.
    """
    fetch_add(word(signals, rank, index), np.int64(value))


@numba.njit(nogil=True)
def wait(signals, rank, value, index=0, timeout=_TIMEOUT):
    """Wait until a word of this rank's signal memory is at least a value, with acquire semantics.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        rank: this rank.
        value: the minimum value to wait for.
        index: the index of the word.
        timeout: the time limit in seconds.

    Returns:
        The value of the word.

    Raises:
        TimeoutError: the word did not reach the value in time.
    """
    address = word(signals, rank, index)
    seen = load_acquire(address)
    spins = 0
    deadline = 0.0
    while seen < value:
        spins += 1
        if spins > _SPINS:
            if spins > _SPINS + _YIELDS:
                _sleep()
            else:
                _yield()
            now = _now()
            if deadline == 0.0:
                deadline = now + timeout
            elif now > deadline:
                raise TimeoutError("a kernel has waited too long for a signal")
        seen = load_acquire(address)
    return seen


@numba.njit(nogil=True)
def put(pointers, rank, offset, values):
    """Copy an array into a peer's memory; :func:`signal` makes it visible to the peer.

    Args:
        pointers: addresses by rank, int64 or uint64.
        rank: the peer.
        offset: elements from the address.
        values: a contiguous array; its dtype is that of the memory.
    """
    flat = values.reshape(-1)
    address = peer(pointers, rank) + np.int64(offset) * np.int64(values.itemsize)
    target = numba.carray(_pointer(address), flat.shape, values.dtype)
    target[:] = flat


@numba.njit(nogil=True)
def put_signal(pointers, signals, rank, offset, values, index=0):
    """Copy an array into a peer's memory, and add 1 to a word of its signal memory.

    Args:
        pointers: addresses by rank, int64 or uint64.
        signals: the addresses of the ranks' signal memory.
        rank: the peer.
        offset: elements from the address.
        values: a contiguous array; its dtype is that of the memory.
        index: the index of the word.
    """
    put(pointers, rank, offset, values)
    signal(signals, rank, index)


@numba.njit(nogil=True)
def barrier(signals, rank, nranks, index=0, offset=0, timeout=_TIMEOUT):
    """Wait until all ranks have arrived. Stores before the barrier are visible to all ranks.

    One thread per rank takes part. The use count is stored in the signal memory.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        rank: this rank.
        nranks: the number of ranks.
        index: the index of the barrier; see :func:`barrier_words` for their size.
        offset: the first word of the barriers in the signal memory.
        timeout: the time limit per peer, in seconds.

    Raises:
        TimeoutError: a rank did not arrive in time.
    """
    first = offset + index * (nranks + 1)
    count = word(signals, rank, first + nranks)
    epoch = load_acquire(count) + 1
    for step in range(nranks):
        signal(signals, (rank + step) % nranks, first + rank)
    for source in range(nranks):
        wait(signals, rank, epoch, first + source, timeout)
    store_release(count, epoch)
