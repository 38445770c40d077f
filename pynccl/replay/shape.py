"""How many blocks each operation reads and writes, and where its own block is in place."""

from __future__ import annotations

from typing import NamedTuple

from pynccl.replay.recorded import ReplayError

__all__ = ["ITEMSIZES", "Blocks", "blocks", "bus_factor", "total"]

ITEMSIZES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}


class Blocks(NamedTuple):
    """Of an operation on one rank, in blocks of its count.

    Attributes:
        sent: that it reads.
        received: that it writes.
        own_sent: which block of sendbuff recvbuff is, in place.
        own_received: which block of recvbuff sendbuff is, in place.
    """

    sent: int
    received: int
    own_sent: int = 0
    own_received: int = 0


def blocks(kind: str, nranks: int, rank: int, root: int | None) -> Blocks:
    """The blocks of an operation.

    Raises:
        ReplayError: there is no such operation.
    """
    at_root = rank == root
    match kind:
        case "all_reduce":
            return Blocks(1, 1)
        case "broadcast":
            return Blocks(int(at_root), 1)
        case "reduce":
            return Blocks(1, int(at_root))
        case "all_gather":
            return Blocks(1, nranks, own_received=rank)
        case "reduce_scatter":
            return Blocks(nranks, 1, own_sent=rank)
        case "all_to_all":
            return Blocks(nranks, nranks)
        case "gather":
            return Blocks(1, nranks if at_root else 0, own_received=rank)
        case "scatter":
            return Blocks(nranks if at_root else 0, 1, own_sent=rank)
        case "send" | "put_signal":
            return Blocks(1, 0)
        case "recv":
            return Blocks(0, 1)
        case "signal" | "wait_signal":
            return Blocks(0, 0)
    raise ReplayError(f"there is no operation {kind!r} in this pynccl")


def total(kind: str, nranks: int, count: int, itemsize: int) -> int:
    """The bytes of an operation as bandwidths count them: the larger of input and output."""
    spread = kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    return count * itemsize * (nranks if spread else 1)


def bus_factor(kind: str, nranks: int) -> float:
    """What turns an algorithm bandwidth into that of the links."""
    if kind == "all_reduce":
        return 2 * (nranks - 1) / nranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (nranks - 1) / nranks
    return 1.0
