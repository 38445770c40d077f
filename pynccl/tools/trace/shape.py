"""The blocks that each operation reads and writes, and the position of its own block in place."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COLLECTIVES", "ITEMSIZES", "KINDS", "ROOTED", "Blocks", "blocks", "total"]

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
    """The buffers of an operation on one rank, in blocks of its count.

    Attributes:
        sent: number of blocks that it reads.
        received: number of blocks that it writes.
        own_sent: in place, the block of sendbuff at which recvbuff begins.
        own_received: in place, the block of recvbuff at which sendbuff begins.
    """

    sent: int
    received: int
    own_sent: int = 0
    own_received: int = 0


# The blocks that each operation reads and writes: a number, one per rank ("n"), or at the root only
# ("root").
_SHAPES = {
    "all_reduce": ("1", "1"),
    "broadcast": ("1 root", "1"),
    "reduce": ("1", "1 root"),
    "all_gather": ("1", "n"),
    "reduce_scatter": ("n", "1"),
    "all_to_all": ("n", "n"),
    "gather": ("1", "n root"),
    "scatter": ("n root", "1"),
    "send": ("1", "0"),
    "recv": ("0", "1"),
    "put_signal": ("1", "0"),
    "signal": ("0", "0"),
    "wait_signal": ("0", "0"),
}
KINDS = frozenset(_SHAPES)
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
COLLECTIVES = ROOTED | {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


def blocks(kind: str, nranks: int, rank: int, root: int | None) -> Blocks:
    """The blocks of an operation; none if the operation is unknown."""
    sizes = []
    for text in _SHAPES.get(kind, ("0", "0")):
        many, _, at = text.partition(" ")
        size = nranks if many == "n" else int(many)
        sizes.append(size if not at or rank == root else 0)
    gathers = kind in ("all_gather", "gather")
    scatters = kind in ("reduce_scatter", "scatter")
    return Blocks(sizes[0], sizes[1], rank if scatters else 0, rank if gathers else 0)


def total(kind: str, nranks: int, count: int, dtype: str) -> int:
    """The bytes of an operation for bandwidths: those of the larger buffer on any rank."""
    shape = "".join(_SHAPES.get(kind, ()))
    most = nranks if "n" in shape else int("1" in shape)
    return count * ITEMSIZES.get(dtype, 0) * most
