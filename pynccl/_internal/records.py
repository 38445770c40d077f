"""The values that C++ creates for Communicator.flight_record() and memory_stats()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FlightRecord", "MemoryStats"]


@dataclass(frozen=True)
class FlightRecord:
    """The record of an operation, from Communicator.flight_record().

    Attributes:
        sequence: the number of the operation on this rank of the communicator, from 1.
        operation: the name of the method of Communicator, such as "all_reduce".
        number: the number of a collective among the collectives of the communicator, or of a
            message among the sends to, or receives from, its peer; from 1. None for one-sided
            operations.
        dtype: the name of NCCL's data type, such as "float32".
        count: the number of elements, as passed to the function of nccl.h.
        root_or_peer: the root of a collective or the peer of a message; meaningless for other
            operations.
        arguments: the dtype, count, operator, root and peer as text.
        stream: the cudaStream_t as an integer.
        issued: the time of the call in seconds of time.monotonic(), with a resolution of a few ms.
        time_created_ns: the time of the call in nanoseconds since the epoch.
        state: "called": the call has not returned. "issued": the call has returned. "captured": the
            operation was captured into a graph of nccl.capture(), whose launches run it. "done":
            the operation is known to be done. "failed": the call failed.
        fingerprint: a 64-bit hash of all collectives up to this one, equal on ranks that have
            called the same ones.
    """

    sequence: int
    operation: str
    number: int | None
    dtype: str
    count: int
    root_or_peer: int
    arguments: str
    stream: int
    issued: float
    time_created_ns: int
    state: Literal["called", "issued", "captured", "done", "failed"]
    fingerprint: int

    def __repr__(self) -> str:
        what = f"{self.operation} #{self.sequence} {self.arguments}"
        return f"<pynccl.nccl.FlightRecord {what}, {self.state}>"


@dataclass(frozen=True)
class MemoryStats:
    """The memory of a communicator in bytes (ncclCommMemStats).

    Attributes:
        suspendable: the bytes that suspend() releases (ncclStatGpuMemSuspend).
        persistent: the bytes that suspend() keeps (ncclStatGpuMemPersist).
        total: all allocated bytes (ncclStatGpuMemTotal).
        suspended: whether the communicator is suspended (ncclStatGpuMemSuspended).
    """

    suspendable: int
    persistent: int
    total: int
    suspended: bool
