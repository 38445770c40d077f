"""Functions for Triton kernels that communicate through the memory of their peers.

    from pynccl.device import triton as peers

    @triton.jit
    def kernel(pointers, signals, rank, nranks, ...):
        peers.barrier(signals, rank, nranks)
        for peer in range(nranks):
            x = tl.load(peers.peer_pointer(pointers, peer, tl.float32) + offsets)

``pointers`` and ``signals`` are arrays of addresses, one for each rank (int64 or uint64): where
each rank has the memory of a window. All ranks must be in one LSA team: they can load and store
each other's memory. Signals are int64 words, zero at first.

On GPUs the functions use Triton's atomics with the scope of the whole system. A kernel that waits
for a peer needs that the peer's kernel runs at the same time: no more programs than the GPU can run
at once, and no ranks that share a GPU and take turns.

With ``TRITON_INTERPRET=1`` the same kernels run on CPUs, on the memory of hostnccl. Ranks are
processes or threads. The programs of a grid run one after the other there: a program may wait for
other ranks, but not for a later program of its own grid. A wait that takes longer than
:func:`set_timeout` allows raises TimeoutError, which Triton turns into an InterpreterError.
:mod:`pynccl.device.triton.interpreter` says what is changed in the interpreter for that.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pynccl.device.triton import interpreter

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
# Triton 3.9 has atomic loads. Its interpreter makes them plain loads, hence not there.
_ATOMIC_LOAD: tl.constexpr = tl.constexpr(
    hasattr(tl, "atomic_load") and not triton.knobs.runtime.interpret
)
_WORD: tl.constexpr = tl.constexpr(tl.int64)
_ADD: tl.constexpr = tl.constexpr("add")  # of signal(): Triton 3.6 takes no plain str as a default

if _INTERPRETED.value:
    interpreter.install()


def set_timeout(seconds: float) -> None:
    """Set how long a wait may take in Triton's interpreter.

    Args:
        seconds: the longest time of one wait; 60 by default. It is that of the process.

    Raises:
        ValueError: seconds is not positive.
    """
    interpreter.set_timeout(seconds)


def barrier_words(nranks: int, barriers: int = 1) -> int:
    """The int64 words of each rank's signal memory that :func:`barrier` needs.

    Args:
        nranks: the ranks that meet.
        barriers: how many barriers there are, one for each program that uses one.

    Returns:
        The number of words of 8 bytes, which must be zero at first.

    Raises:
        ValueError: an argument is not positive.
    """
    for name, value in (("nranks", nranks), ("barriers", barriers)):
        if value < 1:
            raise ValueError(f"{name}: {value} is not positive")
    return barriers * (nranks + 1)


def _pause(spins: Any, _semantic: Any = None) -> None:
    # A builtin for Triton's compiler, which passes _semantic; there it is nothing. The interpreter
    # calls it as a Python function.
    if _semantic is None:
        interpreter.pause(int(spins))


setattr(_pause, tl.core.TRITON_BUILTIN, True)


@triton.jit
def pointer(address, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The pointer of an address.

    Args:
        address: an integer of 64 bits.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on.

    Returns:
        A pointer to dtype.
    """
    return tl.multiple_of(address.to(tl.pointer_type(dtype), bitcast=True), alignment)


@triton.jit
def peer_pointer(pointers, peer, dtype: tl.constexpr, alignment: tl.constexpr = 16):
    """The pointer to the memory of a peer.

    Args:
        pointers: addresses by rank, int64 or uint64.
        peer: the rank.
        dtype: the type of the elements.
        alignment: bytes that the address is a multiple of, which the compiler relies on. The memory
            of a window is aligned to more; less is needed with an offset that is no multiple of 16.

    Returns:
        A pointer to dtype; that of the address 0 must not be used.
    """
    return pointer(tl.load(pointers + peer), dtype, alignment)


@triton.jit
def load(pointers, peer, offsets, dtype: tl.constexpr, mask=None, other=None):
    """Load elements from the memory of a peer.

    Args:
        pointers: addresses by rank, int64 or uint64, multiples of 16.
        peer: the rank.
        offsets: which elements.
        dtype: the type of the elements.
        mask: which of them are loaded.
        other: the value of those that are not.

    Returns:
        The elements, in the shape of offsets.
    """
    return tl.load(peer_pointer(pointers, peer, dtype) + offsets, mask=mask, other=other)


@triton.jit
def store(pointers, peer, offsets, value, dtype: tl.constexpr, mask=None):
    """Store elements into the memory of a peer; :func:`signal` makes them visible to it.

    Args:
        pointers: addresses by rank, int64 or uint64, multiples of 16.
        peer: the rank.
        offsets: which elements.
        value: what is stored.
        dtype: the type of the elements.
        mask: which of them are stored.
    """
    tl.store(peer_pointer(pointers, peer, dtype) + offsets, value, mask=mask)


@triton.jit
def signal(signals, peer, index=0, value=1, op: tl.constexpr = _ADD):
    """Signal a peer, with release semantics: it then sees all that this program has stored before.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        peer: the rank.
        index: which word of its signal memory.
        value: what is added to the word, or what it is set to.
        op: "add" or "set".
    """
    tl.static_assert(op == "add" or op == "set", "op is neither 'add' nor 'set'")  # noqa: PLR1714
    word = peer_pointer(signals, peer, _WORD, 8) + index
    # The atomic is that of one thread: the stores of all others come before it.
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
    """Wait until a word of the own signal memory is at least a value, with acquire semantics.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        rank: the own rank.
        value: the least value that ends the wait.
        index: which word.
        max_spins: how often the word is read at most after the first time; 0: without an end.

    Returns:
        The last value that was read: less than value where max_spins came first.
    """
    word = peer_pointer(signals, rank, _WORD, 8) + index
    seen = _read(word)
    spins = 0
    while (seen < value) & ((max_spins == 0) | (spins < max_spins)):
        _pause(spins)
        seen = _read(word)
        spins += 1
    # One thread has waited for all.
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
    """Store elements into the memory of a peer, and add 1 to a word of its signal memory.

    Args:
        pointers: addresses by rank, int64 or uint64, multiples of 16.
        signals: addresses of the ranks' signal memory.
        peer: the rank.
        offsets: which elements.
        value: what is stored.
        dtype: the type of the elements.
        index: which word.
        mask: which elements are stored.
    """
    store(pointers, peer, offsets, value, dtype, mask)
    signal(signals, peer, index)


@triton.jit
def barrier(signals, rank, nranks, index=0, offset=0):
    """Wait until all ranks have come here; what each has stored before is visible to all.

    One program of each rank takes part. The count of the uses is in the signal memory, so that a
    graph can be launched again.

    Args:
        signals: addresses of the ranks' signal memory, int64 or uint64.
        rank: the own rank.
        nranks: the number of ranks.
        index: which barrier; :func:`barrier_words` counts their words.
        offset: the word of the signal memory where the barriers begin.
    """
    first = offset + index * (nranks + 1)
    count = peer_pointer(signals, rank, _WORD, 8) + first + nranks
    epoch = tl.load(count) + 1
    for step in range(nranks):
        # Each begins with another peer.
        signal(signals, (rank + step) % nranks, first + rank)
    for peer in range(nranks):
        wait(signals, rank, epoch, first + peer)
    tl.store(count, epoch)
    tl.debug_barrier()  # the next barrier loads it, in all threads


@triton.jit
def arrive_last(counter, programs):
    """Count the programs of this grid that have come here.

    The last one sees what all others have stored before, and can signal for all. The counter is
    zero again then.

    Args:
        counter: a pointer to an int32 or int64 on the own device, zero at first.
        programs: how many come.

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
