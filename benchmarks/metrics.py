"""Bandwidths and sizes as nccl-tests defines them: see pynccl/tools/trace/bandwidth.py."""

from __future__ import annotations

from pynccl.tools.lab.sizes import parse_size
from pynccl.tools.trace.bandwidth import BUS_FACTORS, Bandwidth, bandwidth, bus_factor

__all__ = [
    "BUS_FACTORS",
    "DEFAULT_SIZES",
    "FULL_SIZES",
    "QUICK_SIZES",
    "Bandwidth",
    "bandwidth",
    "bus_factor",
    "parse_size",
]

_KIB, _MIB = 2**10, 2**20

FULL_SIZES = (
    4,
    256,
    4 * _KIB,
    16 * _KIB,
    64 * _KIB,
    256 * _KIB,
    _MIB,
    4 * _MIB,
    16 * _MIB,
    64 * _MIB,
)
DEFAULT_SIZES = (4, 4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB)
QUICK_SIZES = (4, 64 * _KIB, 4 * _MIB)
