"""The operations: the buffers a rank needs, its input, and the expected output.

Sizes are those of the larger buffer, as in nccl-tests. The values are small whole numbers, exact in
every dtype whichever way they are summed, and another sequence on each rank. Only NumPy is used, so
that a library's ranks need import nothing of another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DTYPES",
    "MODULUS",
    "OPERATIONS",
    "ROOT",
    "Buffers",
    "Row",
    "Shape",
    "exact_row",
    "expected",
    "sent",
]

ROOT = 0

# The bytes of an element.
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

_PERIOD = 1009  # a prime: no block of a usual size begins where the values repeat
MODULUS = 8  # of the values


@dataclass(frozen=True)
class Shape:
    """The buffers of one rank.

    Attributes:
        send, recv: blocks to send and to receive, 0 being one for each rank.
        in_place: the same buffer is sent and received, as torch.distributed has it.
    """

    send: int = 1
    recv: int = 1
    in_place: bool = False

    def blocks(self, nranks: int) -> int:
        """The blocks of the larger buffer."""
        return nranks if 0 in (self.send, self.recv) else 1

    def count(self, nbytes: int, nranks: int, itemsize: int) -> int:
        """The elements of a block, so that the larger buffer has at most nbytes; at least one."""
        return max(1, nbytes // (itemsize * self.blocks(nranks)))


OPERATIONS = {
    "all_reduce": Shape(),
    "all_gather": Shape(recv=0),
    "reduce_scatter": Shape(send=0),
    "broadcast": Shape(),
    "reduce": Shape(),
    "all_to_all": Shape(send=0, recv=0),
    "ping_pong": Shape(),  # ranks 0 and 1; the time is that of one way
    "ring": Shape(),  # every rank sends to the next one and receives from the one before
    "barrier": Shape(),
}


@dataclass(frozen=True)
class Row:
    """One operation of one size.

    Attributes:
        nbytes: of the larger buffer.
        count: elements of one block.
    """

    operation: str
    dtype: str
    nranks: int
    nbytes: int
    count: int


def exact_row(operation: str, dtype: str, nranks: int, nbytes: int) -> Row:
    """The row nearest below nbytes that has whole blocks, or that of one element in each."""
    shape, itemsize = OPERATIONS[operation], DTYPES[dtype]
    count = shape.count(nbytes, nranks, itemsize)
    return Row(operation, dtype, nranks, count * itemsize * shape.blocks(nranks), count)


class Buffers:
    """One rank's memory for a row, as bytes. The results are checked on filled buffers; timed are
    zeros, which no number of operations in place can make overflow.
    """

    def __init__(self, row: Row, rank: int) -> None:
        self.row = row
        self.rank = rank
        shape, block = OPERATIONS[row.operation], row.count * DTYPES[row.dtype]
        self.send = _pages((shape.send or row.nranks) * block)
        self.recv = _pages((shape.recv or row.nranks) * block)

    def fill(self) -> None:
        """Write what this rank sends."""
        count = self.send.nbytes // DTYPES[self.row.dtype]
        self.send[:] = self._bytes(sent(self.rank, count))
        self.recv[:] = 0xFF
        if self.row.operation == "broadcast" and self.rank == ROOT:
            self.recv[:] = self.send  # it is in place, with every library

    def clear(self) -> None:
        self.send[:] = 0
        self.recv[:] = 0

    def wrong(self) -> int:
        """How many bytes of what was received are not as they must be."""
        values = expected(self.row.operation, self.rank, self.row.nranks, self.row.count)
        return 0 if values is None else int(np.count_nonzero(self.recv != self._bytes(values)))

    def _bytes(self, values: NDArray[np.int16]) -> NDArray[np.uint8]:
        """Small whole numbers in the dtype of the row."""
        match self.row.dtype:
            case "int8":
                return values.astype(np.int8).view(np.uint8)
            case "bfloat16":  # the upper half of a float32
                return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").view("u1")
            case _:
                return values.astype(self.row.dtype).view(np.uint8)


def _pages(nbytes: int) -> NDArray[np.uint8]:
    """Bytes that begin on a page, so that every library and run has the same alignment."""
    page = 4096
    memory = np.zeros(nbytes + page, np.uint8)
    start = -memory.ctypes.data % page
    return memory[start : start + nbytes]


def sent(rank: int, count: int) -> NDArray[np.int16]:
    """The values that a rank sends."""
    return _sequence(_values(rank), 0, count)


def expected(operation: str, rank: int, nranks: int, count: int) -> NDArray[np.int16] | None:
    """The values that a rank receives; None where it receives nothing.

    Args:
        operation: of OPERATIONS, or a collective of benchmarks.operations.
        rank: the receiver.
        nranks: how many there are.
        count: elements of one block.
    """
    if (
        operation == "barrier"
        or (operation in ("reduce", "gather") and rank != ROOT)
        or (operation == "ping_pong" and rank > 1)
    ):
        return None
    values = [_values(peer) for peer in range(nranks)]
    total = np.sum(values, axis=0)
    # The sequences that the result is made of, and where in them it begins.
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
        "ring": ([values[rank - 1]], 0),
        "send_recv": ([values[rank - 1]], 0),
    }[operation]
    return np.concatenate([_sequence(source, begin, count) for source in sources])


def _values(rank: int) -> NDArray[np.int16]:
    """What a rank sends, over and over."""
    return (np.arange(1, _PERIOD + 1) * (rank + 1) % _PERIOD % MODULUS).astype(np.int16)


def _sequence(values: NDArray[np.int16], start: int, count: int) -> NDArray[np.int16]:
    """Elements [start, start + count) of the endless repetition of values."""
    return np.resize(np.roll(values.astype(np.int16), -(start % _PERIOD)), count)
