"""Functions for kernels that Numba compiles for CPUs and that communicate through memory.

    from pynccl.device import numba as peers

    @numba.njit(nogil=True)
    def kernel(pointers, signals, rank, nranks, count):
        peers.barrier(signals, rank, nranks)
        x = peers.array(peers.peer(pointers, (rank + 1) % nranks), (count,), np.float32)

``pointers`` and ``signals`` are arrays of addresses, one for each rank (int64 or uint64): where
each rank has the memory of a window. Signals are int64 words, zero at first: those of
:mod:`pynccl.device.triton`, too. Addresses are int64 in kernels: Numba makes a float of the sum of
an int64 and a uint64.

Kernels are called, or run on a stream as ``stream.launch(lambda: kernel(...))``. Compile them with
``nogil=True``: without it a rank that waits keeps other threads of the process from running. A wait
that takes longer than its time limit raises TimeoutError. It does not see that a communicator has
been aborted.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
_SPINS = 1000  # that only read; later ones yield
_YIELDS = 100  # later ones sleep
_SLEEP = 50  # microseconds

_WORD = ir.IntType(64)


def barrier_words(nranks: int, barriers: int = 1) -> int:
    """The int64 words of each rank's signal memory that :func:`barrier` needs.

    Args:
        nranks: the ranks that meet.
        barriers: how many barriers there are.

    Returns:
        The number of words of 8 bytes, which must be zero at first.

    Raises:
        ValueError: an argument is not positive.
    """
    for name, value in (("nranks", nranks), ("barriers", barriers)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not positive")
    return barriers * (nranks + 1)


def _is_address(address: Any) -> bool:
    return isinstance(address, types.Integer) and address.bitwidth == 64


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """The address as a pointer, for numba.carray."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return (types.voidptr(address), generate) if _is_address(address) else None


@intrinsic
def load_acquire(typing: Any, address: Any) -> Any:
    """Load the int64 at an address, with acquire semantics.

    Args:
        address: a multiple of 8.

    Returns:
        What is there.
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
        value: what is stored.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        builder.store_atomic(args[1], pointer, "release", 8)
        return context.get_dummy_value()

    return (types.void(address, types.int64), generate) if _is_address(address) else None


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at an address in one step, with acquire and release semantics.

    Args:
        address: a multiple of 8.
        value: what is added.

    Returns:
        What was there before.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "acq_rel")

    return (types.int64(address, types.int64), generate) if _is_address(address) else None


def _libc(name: str, *parameters: Any) -> Any:
    """A function of the C library that takes and returns integers."""

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
    """Seconds of the monotonic clock."""

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
    """The memory at an address as an array, without a copy.

    Args:
        address: a multiple of the size of an element.
        shape: a tuple of integers.
        dtype: the type of the elements, as ``np.float32``.

    Returns:
        An array in the order of C.
    """
    return numba.carray(_pointer(address), shape, dtype)


@numba.njit(nogil=True)
def peer(pointers, rank):
    """The address of the memory of a peer.

    Args:
        pointers: addresses by rank, int64 or uint64.
        rank: the peer.

    Returns:
        The address, int64.
    """
    return np.int64(pointers[rank])


@numba.njit(nogil=True)
def word(signals, rank, index):
    """The address of a word of a rank's signal memory.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        rank: the rank.
        index: which word.

    Returns:
        The address, int64.
    """
    return np.int64(signals[rank]) + 8 * np.int64(index)


@numba.njit(nogil=True)
def signal(signals, rank, index=0, value=1):
    """Signal a peer, with release semantics: it then sees all that was stored before.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        rank: the peer.
        index: which word of its signal memory.
        value: what is added to the word.
    """
    fetch_add(word(signals, rank, index), np.int64(value))


@numba.njit(nogil=True)
def wait(signals, rank, value, index=0, timeout=_TIMEOUT):
    """Wait until a word of the own signal memory is at least a value, with acquire semantics.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        rank: the own rank.
        value: the least value that ends the wait.
        index: which word.
        timeout: seconds.

    Returns:
        The value that was read.

    Raises:
        TimeoutError: the word was less for all that time.
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
    """Copy an array into the memory of a peer; :func:`signal` makes it visible to it.

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
    """Copy an array into the memory of a peer, and add 1 to a word of its signal memory.

    Args:
        pointers: addresses by rank, int64 or uint64.
        signals: addresses of the ranks' signal memory.
        rank: the peer.
        offset: elements from the address.
        values: a contiguous array; its dtype is that of the memory.
        index: which word.
    """
    put(pointers, rank, offset, values)
    signal(signals, rank, index)


@numba.njit(nogil=True)
def barrier(signals, rank, nranks, index=0, offset=0, timeout=_TIMEOUT):
    """Wait until all ranks have come here; what each has stored before is visible to all.

    One thread of each rank takes part. The count of the uses is in the signal memory.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        rank: the own rank.
        nranks: the number of ranks.
        index: which barrier; :func:`barrier_words` counts their words.
        offset: the word of the signal memory where the barriers begin.
        timeout: seconds for each peer.

    Raises:
        TimeoutError: a rank has not come in time.
    """
    first = offset + index * (nranks + 1)
    count = word(signals, rank, first + nranks)
    epoch = load_acquire(count) + 1
    for step in range(nranks):
        signal(signals, (rank + step) % nranks, first + rank)
    for source in range(nranks):
        wait(signals, rank, epoch, first + source, timeout)
    store_release(count, epoch)
