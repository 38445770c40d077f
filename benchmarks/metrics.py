"""Bandwidths and sizes as nccl-tests defines them.

The size of an operation is that of its larger buffer: the tensor of all_reduce, broadcast, reduce
and send/recv, all ranks' blocks together of the others. algbw is that size over the time. busbw is
algbw times the share of the size that the busiest link must carry, for every algorithm, so that it
can be compared with the speed of the hardware for any number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "BUS_FACTORS",
    "DEFAULT_SIZES",
    "QUICK_SIZES",
    "Bandwidth",
    "bandwidth",
    "bus_factor",
    "parse_size",
]

_KIB, _MIB = 2**10, 2**20

DEFAULT_SIZES = (
    *(4, 256, 4 * _KIB, 16 * _KIB, 64 * _KIB, 256 * _KIB),
    *(_MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB),
)
QUICK_SIZES = (4, 64 * _KIB, 4 * _MIB)

_UNITS = {"": 1, "K": _KIB, "M": _MIB, "G": 2**30}


def _whole(_nranks: int) -> float:
    return 1.0


def _others(nranks: int) -> float:
    return (nranks - 1) / nranks


def _both_ways(nranks: int) -> float:
    return 2 * (nranks - 1) / nranks


# From a collective's name to busbw / algbw for a number of ranks.
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    # Every element leaves n-1 ranks to be summed and enters n-1 ranks as the sum, over n links.
    "all_reduce": _both_ways,
    # The whole tensor passes the link of the root.
    "broadcast": _whole,
    "reduce": _whole,
    # Of n blocks each rank has one itself; n-1 pass its link, or that of the root.
    "all_gather": _others,
    "reduce_scatter": _others,
    "all_to_all": _others,
    "gather": _others,
    "scatter": _others,
    # Each rank sends the tensor and receives one at the same time; links are counted one way.
    "send_recv": _whole,
}


class Bandwidth(NamedTuple):
    """Bandwidths in GB/s, a GB being 1e9 bytes."""

    algbw: float
    busbw: float


def bus_factor(collective: str, nranks: int) -> float:
    """What turns algbw into busbw.

    Args:
        collective: a key of BUS_FACTORS.
        nranks: how many ranks there are.

    Raises:
        KeyError: no such collective.
        ValueError: nranks is below 1.
    """
    if nranks < 1:
        raise ValueError(f"nranks: {nranks} is below 1")
    return BUS_FACTORS[collective](nranks)


def bandwidth(collective: str, nbytes: int, seconds: float, nranks: int) -> Bandwidth:
    """The bandwidths of an operation.

    Args:
        collective: a key of BUS_FACTORS.
        nbytes: its size, that of the larger buffer.
        seconds: the time of one operation.
        nranks: how many ranks there are.

    Raises:
        KeyError: no such collective.
        ValueError: nranks is below 1, or seconds not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"seconds: {seconds} is not above 0")
    algbw = nbytes / seconds / 1e9
    return Bandwidth(algbw, algbw * bus_factor(collective, nranks))


def parse_size(text: str) -> int:
    """Read a number of bytes: ``"4"``, ``"64K"``, ``"16MB"``, ``"1GiB"``, by powers of 1024.

    Raises:
        ValueError: it is none, or not above 0.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)(I?B)?", text.strip().upper())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is no size in bytes; write 4, 64K, 16MB")
    return int(match[1]) * _UNITS[match[2]]
