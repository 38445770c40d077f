"""All-reduced maxima, so that every rank takes the same decision."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

from pynccl import nccl

__all__ = ["align", "maximum", "new_event", "new_stream", "timed"]


def new_stream(comm: nccl.Communicator, priority: int = 0) -> nccl.Stream:
    """Create a stream on the communicator's device."""
    device = comm.device if comm.provider == "cuda" else None
    return nccl.Stream(comm.provider, device=device, priority=priority)


def new_event(comm: nccl.Communicator, *, timing: bool = True) -> nccl.Event:
    """Create an event on the communicator's device."""
    device = comm.device if comm.provider == "cuda" else None
    return nccl.Event(comm.provider, device=device, timing=timing)


def align(comm: nccl.Communicator, stream: nccl.Stream) -> None:
    """Return at about the same time on all ranks."""
    comm.barrier(stream=stream)
    stream.synchronize()


def timed(
    comm: nccl.Communicator,
    stream: nccl.Stream,
    enqueue: Callable[[nccl.Stream], object],
    times: int = 1,
) -> float:
    """The seconds of work on a stream on this rank; all ranks begin at about the same time."""
    align(comm, stream)
    began = time.perf_counter()
    for _ in range(times):
        enqueue(stream)
    stream.synchronize()
    return time.perf_counter() - began


def maximum(comm: nccl.Communicator, stream: nccl.Stream, values: Sequence[float]) -> list[float]:
    """The maximum of each value over the ranks. Every rank must pass the same number of values.

    Args:
        comm: the communicator.
        stream: the stream to run on; it is synchronised.
        values: at least one value.

    Raises:
        NcclError: NCCL failed.
    """
    if comm.provider == "host":
        memory = (ctypes.c_double * len(values))(*values)
        comm.all_reduce(
            ctypes.addressof(memory), nccl.MAX, count=len(values), dtype="float64", stream=stream
        )
        stream.synchronize()
        return list(memory)
    from pynccl.tools.lab.arrays import arrays_of  # only GPUs need an array library

    arrays = arrays_of(comm)
    there = arrays.of_values(values)
    comm.all_reduce(there, nccl.MAX, stream=stream)
    stream.synchronize()
    return arrays.values_of(there)
