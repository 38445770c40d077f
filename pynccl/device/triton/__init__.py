"""Functions for Triton kernels that communicate through the memory of peers.

    from pynccl.device import triton as peers

    @triton.jit
    def kernel(pointers, signals, rank, nranks, ...):
        peers.barrier(signals, rank, nranks)
        for peer in range(nranks):
            x = tl.load(peers.peer_pointer(pointers, peer, tl.float32) + offsets)

``pointers`` and ``signals`` are arrays (int64 or uint64) of the addresses of each rank's memory in
a window. All ranks must be in one LSA team, whose members can load from and store to each other's
memory. Signals are int64 words, initially zero.

On GPUs, the functions use Triton's atomics with system scope. A kernel that waits for a peer
requires the peer's kernel to run concurrently: do not launch more programs than the GPU can run at
once, and do not time-share a GPU between ranks.

With ``TRITON_INTERPRET=1`` the same kernels run on CPUs, on the memory of hostnccl. Ranks are
processes or threads. The programs of a grid run sequentially: a program may wait for other ranks,
but not for a later program of its own grid. A wait that exceeds :func:`set_timeout` raises
TimeoutError, which Triton converts to an InterpreterError. :mod:`pynccl.device.triton.interpreter`
documents the changes to the interpreter.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pynccl.device._words import barrier_words
from pynccl.device.triton import interpreter
from pynccl.device.triton.interpreter import set_timeout

__all__ = [
    "arrive_last",
    "barrier",
    "barrier_words",
    "load",
    "peer_pointer",
    "pointer",
    "put_signal",
    "set_timeout",
    "signal",
    "store",
    "wait",
]

_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
# Triton 3.9 supports atomic loads, but its interpreter treats them as plain loads.
_ATOMIC_LOAD: tl.constexpr = tl.constexpr(
    hasattr(tl, "atomic_load") and not triton.knobs.runtime.interpret
)
_WORD: tl.constexpr = tl.constexpr(tl.int64)
_ADD: tl.constexpr = tl.constexpr("add")  # Triton 3.6: a plain str cannot be a default

if _INTERPRETED.value:
    interpreter.install()


def _pause(spins: Any, _semantic: Any = None) -> None:
    # A builtin without effect for Triton's compiler, which passes _semantic. The interpreter calls
    # it as a Python function.
    if _semantic is None:
        interpreter.pause(int(spins))


setattr(_pause, tl.core.TRITON_BUILTIN, True)


@triton.jit
def pointer(address, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Convert an address to a pointer.

    Args:
        address: a 64-bit integer.
        dtype: the type of the elements.
        alignment: the alignment of the address in bytes, which the compiler relies on.

    Returns:
        A pointer to dtype.
    """
    return tl.multiple_of(address.to(tl.pointer_type(dtype), bitcast=True), alignment)


@triton.jit
def peer_pointer(pointers, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """Return a pointer to the memory of a peer.

    Args:
        pointers: addresses by rank, int64 or uint64.
        peer: the rank.
        dtype: the type of the elements.
        alignment: the alignment of the address in bytes, which the compiler relies on. Window
            memory has a larger alignment; pass a smaller one for offsets that are not multiples of
            16.

    Returns:
        A pointer to dtype, which must not be used if the address is 0.
    """
    return pointer(tl.load(pointers + peer), dtype, alignment)


@triton.jit
def load(pointers, peer, offsets, dtype: tl.constexpr, mask=None, other=None):
    """Load elements from a peer's memory.

    Args:
        pointers: addresses by rank, int64 or uint64, multiples of 16.
        peer: the rank.
        offsets: the indices of the elements.
        dtype: the type of the elements.
        mask: which of them to load.
        other: the value of masked elements.

    Returns:
        The elements, in the shape of offsets.
    """
    return tl.load(peer_pointer(pointers, peer, dtype) + offsets, mask=mask, other=other)


@triton.jit
def store(pointers, peer, offsets, value, dtype: tl.constexpr, mask=None):
    """Store elements into a peer's memory; :func:`signal` makes them visible to the peer.

    Args:
        pointers: addresses by rank, int64 or uint64, multiples of 16.
        peer: the rank.
        offsets: the indices of the elements.
        value: the elements to store.
        dtype: the type of the elements.
        mask: which of them to store.
    """
    tl.store(peer_pointer(pointers, peer, dtype) + offsets, value, mask=mask)


@triton.jit
def signal(signals, peer, index=0, value=1, op: tl.constexpr = _ADD):
    """Signal a peer, with release semantics: this program's previous stores are visible to it.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        peer: the rank.
        index: the index of the word in its signal memory.
        value: the value to add to the word, or to set it to.
        op: "add" or "set".
    """
    tl.static_assert(op == "add" or op == "set", "op is neither 'add' nor 'set'")  # noqa: PLR1714
    word = peer_pointer(signals, peer, _WORD, 8) + index
    # The atomic is executed by one thread, after the stores of all other threads.
    tl.debug_barrier()
    if op == "add":
        tl.atomic_add(word, value, sem="release", scope="sys")
    else:
        tl.atomic_xchg(word, value, sem="release", scope="sys")


@triton.jit
def _read(word):
    if _ATOMIC_LOAD:
        return tl.atomic_load(word, sem="acquire", scope="sys")
    else:
        return tl.atomic_add(word, 0, sem="acquire", scope="sys")


@triton.jit
def wait(signals, rank, value, index=0, max_spins=0):
    """Wait until a word of this rank's signal memory is at least a value, with acquire semantics.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        rank: this rank.
        value: the minimum value to wait for.
        index: the index of the word.
        max_spins: the maximum number of reads after the first; 0 is no limit.

    Returns:
        The last value read, which is less than value if max_spins was reached.
    """
    word = peer_pointer(signals, rank, _WORD, 8) + index
    seen = _read(word)
    spins = 0
    while (seen < value) & ((max_spins == 0) | (spins < max_spins)):
        _pause(spins)
        seen = _read(word)
        spins += 1
    # One thread has waited on behalf of all.
    tl.debug_barrier()
    return seen


@triton.jit
def put_signal(
    pointers,
    signals,
    peer,
    offsets,
    value,
    dtype: tl.constexpr,
    index=0,
    mask=None,
):
    """Store elements into a peer's memory, and add 1 to a word of its signal memory.

    Args:
        pointers: addresses by rank, int64 or uint64, multiples of 16.
        signals: the addresses of the ranks' signal memory.
        peer: the rank.
        offsets: the indices of the elements.
        value: the elements to store.
        dtype: the type of the elements.
        index: the index of the word.
        mask: which elements to store.
    """
    store(pointers, peer, offsets, value, dtype, mask)
    signal(signals, peer, index)


@triton.jit
def barrier(signals, rank, nranks, index=0, offset=0):
    """Wait until all ranks have arrived. Stores before the barrier are visible to all ranks.

    One program per rank takes part. The use count is stored in the signal memory, so graphs can be
    launched repeatedly.

    Args:
        signals: the addresses of the ranks' signal memory, int64 or uint64.
        rank: this rank.
        nranks: the number of ranks.
        index: the index of the barrier; see :func:`barrier_words` for their size.
        offset: the first word of the barriers in the signal memory.
    """
    first = offset + index * (nranks + 1)
    count = peer_pointer(signals, rank, _WORD, 8) + first + nranks
    epoch = tl.load(count) + 1
    for step in range(nranks):
        # Each rank starts with a different peer.
        signal(signals, (rank + step) % nranks, first + rank)
    for peer in range(nranks):
        wait(signals, rank, epoch, first + peer)
    tl.store(count, epoch)
    tl.debug_barrier()  # all threads load it in the next barrier


@triton.jit
def arrive_last(counter, programs):
    """Count the programs of this grid that have arrived.

    The previous stores of all programs are visible to the last one, which can signal on their
    behalf. It resets the counter to zero.

    Args:
        counter: a pointer to an int32 or int64 on this device, initially zero.
        programs: the number of programs.

    Returns:
        Whether this program is the last.
    """
    tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    last = before == programs - 1
    if last:
        tl.atomic_xchg(counter, 0, sem="relaxed", scope="gpu")
    tl.debug_barrier()
    return last
