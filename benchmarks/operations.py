"""The operations: the buffers of a rank, its input, and the expected output.

Sizes are those of the larger buffer, as in nccl-tests. The values are small integers, exact in
every dtype in any order of summation (bfloat16: up to 36 ranks), in a different sequence on each
rank, so a misplaced block or a rank that is counted twice is detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "OPERATIONS", "ROOT", "Buffers", "Row", "exact_row", "expected"]

ROOT = 0

# The bytes of an element.
DTYPES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
}

_PERIOD = 1009  # a prime: no block of a usual size begins where the values repeat
_MODULUS = 8  # of the values


class _Shape(NamedTuple):
    """The numbers of blocks in the buffers of a rank; 0 is one block for each rank."""

    send: int = 1
    recv: int = 1


OPERATIONS = {
    "all_reduce": _Shape(),
    "all_gather": _Shape(recv=0),
    "reduce_scatter": _Shape(send=0),
    "broadcast": _Shape(),
    "reduce": _Shape(),
    "all_to_all": _Shape(send=0, recv=0),
    "gather": _Shape(recv=0),
    "scatter": _Shape(send=0),
    "ping_pong": _Shape(),  # ranks 0 and 1; the time is that of one way
    "send_recv": _Shape(),  # every rank sends to the next rank and receives from the previous one
    "barrier": _Shape(),
}
_IN_PLACE = ("all_reduce", "broadcast", "reduce")  # in torch.distributed


@dataclass(frozen=True)
class Row:
    """One operation of one size.

    Attributes:
        nbytes: the size of the larger buffer.
        count: the number of elements of a block.
    """

    operation: str
    dtype: str
    nranks: int
    nbytes: int
    count: int


def exact_row(operation: str, dtype: str, nranks: int, nbytes: int) -> Row:
    """Return the largest row of at most nbytes with whole blocks, of at least one element each."""
    block = DTYPES[dtype] * (nranks if 0 in OPERATIONS[operation] else 1)
    count = max(1, nbytes // block)
    return Row(operation, dtype, nranks, count * block, count)


class Buffers:
    """One rank's memory for a row.

    Results are checked on filled buffers. Zeros are timed, because repeated operations in place
    would overflow other values.

    Args:
        row: the row.
        rank: this rank.
        in_place: whether the operations that are in place in torch.distributed have one buffer.
        device: the device of torch's tensors.

    Attributes:
        send, recv: the bytes in host memory.
    """

    def __init__(self, row: Row, rank: int, *, in_place: bool = False, device: Any = "cpu") -> None:  # noqa: ANN401
        self.row = row
        self.rank = rank
        self._device = device
        self._tensors: tuple[Any, Any] | None = None
        shape, block = OPERATIONS[row.operation], row.count * DTYPES[row.dtype]
        self.recv = _pages((shape.recv or row.nranks) * block)
        self.send = self.recv
        if not in_place or row.operation not in _IN_PLACE:
            self.send = _pages((shape.send or row.nranks) * block)

    def arrays(self, library: str) -> tuple[Any, Any]:
        """Return send and recv as arrays of ``"numpy"`` or ``"torch"``."""
        dtype: Any = self.row.dtype
        if library == "numpy":
            if dtype == "bfloat16":
                from ml_dtypes import bfloat16 as dtype
            return self.send.view(dtype), self.recv.view(dtype)
        if self._tensors is None:
            import torch

            send, recv = (
                torch.from_numpy(part).view(getattr(torch, dtype)).to(self._device)
                for part in (self.send, self.recv)
            )
            self._tensors = (recv if self.send is self.recv else send), recv
        return self._tensors

    def fill(self) -> None:
        """Fill send with this rank's values, and recv with values that no result contains."""
        self.recv[:] = 0xFF
        count = self.send.nbytes // DTYPES[self.row.dtype]
        self.send[:] = self._bytes(_sequence(_values(self.rank), 0, count))
        if self.row.operation == "broadcast" and self.rank == ROOT:
            self.recv[:] = self.send  # it is in place, with every library
        self._copy(to_device=True)

    def clear(self) -> None:
        self.send[:] = self.recv[:] = 0
        self._copy(to_device=True)

    def wrong(self) -> str:
        """Describe how recv differs from the expected values; return '' if it does not."""
        row = self.row
        values = expected(row.operation, self.rank, row.nranks, row.count)
        if values is None:
            return ""
        self._copy(to_device=False)
        wrong = np.flatnonzero(self.recv != self._bytes(values))
        if not wrong.size:
            return ""
        return (
            f"{wrong.size} of {self.recv.size} bytes are wrong on rank {self.rank} of "
            f"{row.nranks}, the first in element {wrong[0] // DTYPES[row.dtype]}"
        )

    def _copy(self, *, to_device: bool) -> None:
        """Copy the bytes to or from a GPU. Tensors on CPUs share the memory."""
        if self._tensors is None or self._tensors[0].device.type == "cpu":
            return
        import torch

        for memory, tensor in zip((self.send, self.recv), self._tensors, strict=True):
            pair = torch.from_numpy(memory), tensor.view(torch.uint8)
            target, source = reversed(pair) if to_device else pair
            target.copy_(source)

    def _bytes(self, values: NDArray[np.int16]) -> NDArray[np.uint8]:
        """Return the bytes of small integers in the dtype of the row."""
        if self.row.dtype == "bfloat16":  # the upper half of a float32
            return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").view("u1")
        return values.astype(self.row.dtype).view(np.uint8)


def _pages(nbytes: int) -> NDArray[np.uint8]:
    """Return bytes aligned to a page, so alignment is the same for every library and run."""
    page = 4096
    memory = np.zeros(nbytes + page, np.uint8)
    start = -memory.ctypes.data % page
    return memory[start : start + nbytes]


def expected(operation: str, rank: int, nranks: int, count: int) -> NDArray[np.int16] | None:
    """Return the values that a rank receives, None if it receives nothing.

    Args:
        operation: a key of OPERATIONS.
        rank: the receiver.
        nranks: the number of ranks.
        count: the number of elements of a block.
    """
    if (
        operation == "barrier"
        or (operation in ("reduce", "gather") and rank != ROOT)
        or (operation == "ping_pong" and rank > 1)
    ):
        return None
    values = [_values(peer) for peer in range(nranks)]
    total = np.sum(values, axis=0)
    # The sequences that the result consists of, and its begin in them.
    sources, begin = {
        "all_reduce": ([total], 0),
        "reduce": ([total], 0),
        "reduce_scatter": ([total], rank * count),
        "broadcast": ([values[ROOT]], 0),
        "all_gather": (values, 0),
        "all_to_all": (values, rank * count),
        "gather": (values, 0),
        "scatter": ([values[ROOT]], rank * count),
        "ping_pong": ([values[(1 - rank) % nranks]], 0),
        "send_recv": ([values[rank - 1]], 0),
    }[operation]
    return np.concatenate([_sequence(source, begin, count) for source in sources])


def _values(rank: int) -> NDArray[np.int16]:
    """Return the values that a rank repeats."""
    return (np.arange(1, _PERIOD + 1) * (rank + 1) % _PERIOD % _MODULUS).astype(np.int16)


def _sequence(values: NDArray[np.int16], start: int, count: int) -> NDArray[np.int16]:
    """Return the elements [start, start + count) of the infinite repetition of values."""
    return np.resize(np.roll(values.astype(np.int16), -(start % _PERIOD)), count)
