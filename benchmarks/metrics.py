"""Bandwidths and sizes as nccl-tests defines them: see pynccl/trace/bandwidth.py."""

from __future__ import annotations

import re

from pynccl.trace.bandwidth import BUS_FACTORS, Bandwidth, bandwidth, bus_factor

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


def parse_size(text: str) -> int:
    """Read a number of bytes: ``"4"``, ``"64K"``, ``"16MB"``, ``"1GiB"``, by powers of 1024.

    Raises:
        ValueError: it is none, or not above 0.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)(I?B)?", text.strip().upper())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is no size in bytes; write 4, 64K, 16MB")
    return int(match[1]) * _UNITS[match[2]]
