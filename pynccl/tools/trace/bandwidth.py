"""Bandwidths as defined by nccl-tests.

The size of an operation is that of its larger buffer: the tensor for all_reduce, broadcast, reduce
and send/recv, and all ranks' blocks together for the others. algbw is that size divided by the
time. busbw is algbw times the share of the size that the busiest link must carry under any
algorithm. It can thus be compared with the hardware's speed for any number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pynccl.tools.trace.model import Operation, ProcessTrace
from pynccl.tools.trace.shape import total

__all__ = [
    "BUS_FACTORS",
    "Bandwidth",
    "bandwidth",
    "bus_factor",
    "operation_bandwidths",
    "operation_bytes",
]


# How often (n-1)/n of the tensor crosses the busiest link; 0: the whole tensor crosses it once.
BUS_FACTORS = {
    # Every element leaves n-1 ranks to be summed and enters n-1 ranks as the sum, over n links.
    "all_reduce": 2,
    # The whole tensor passes the link of the root.
    "broadcast": 0,
    "reduce": 0,
    # Of n blocks each rank holds its own; n-1 cross its link, or that of the root.
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "gather": 1,
    "scatter": 1,
    # Each rank sends the tensor and receives one at the same time; links count in one direction.
    "send_recv": 0,
}

_MESSAGES = ("send", "recv", "put_signal")


class Bandwidth(NamedTuple):
    """Bandwidths in GB/s (1 GB is 1e9 bytes)."""

    algbw: float
    busbw: float


def bus_factor(collective: str, nranks: int) -> float:
    """The factor from algbw to busbw.

    Args:
        collective: a key of BUS_FACTORS, or "send", "recv" or "put_signal".
        nranks: the number of ranks.

    Raises:
        KeyError: the collective is unknown.
        ValueError: nranks is below 1.
    """
    if nranks < 1:
        raise ValueError(f"nranks: {nranks} is below 1")
    times = BUS_FACTORS["send_recv" if collective in _MESSAGES else collective]
    return times * (nranks - 1) / nranks if times else 1.0


def bandwidth(collective: str, nbytes: int, seconds: float, nranks: int) -> Bandwidth:
    """The bandwidths of an operation.

    Args:
        collective: see bus_factor().
        nbytes: size of the larger buffer in bytes.
        seconds: the time of one operation.
        nranks: the number of ranks.

    Raises:
        KeyError: the collective is unknown.
        ValueError: nranks is below 1, or seconds is not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"seconds: {seconds} is not above 0")
    algbw = nbytes / seconds / 1e9
    return Bandwidth(algbw, algbw * bus_factor(collective, nranks))


def operation_bandwidths(
    trace: ProcessTrace, operations: Sequence[Operation] | None = None
) -> list[Bandwidth | None]:
    """The bandwidths of the operations of a trace, in order.

    Operations of a group on one stream share the times of the group. Each one gets the bandwidth
    for the total bytes of the group's operations of its kind and communicator.

    Args:
        trace: the trace of one process.
        operations: for example those of its runs; None is all operations that were called.

    Returns:
        The bandwidths; None for an operation that was not timed or has no bandwidth (a signal, a
        barrier).
    """
    together: dict[tuple[object, ...], int] = defaultdict(int)
    keys: list[tuple[object, ...]] = []
    operations = trace.operations if operations is None else operations
    for index, one in enumerate(operations):
        place = index if one.group is None else (one.group, one.stream, one.called)
        keys.append((place, one.kind, one.communicator, one.rank))
        together[keys[-1]] += operation_bytes(trace, one)
    result: list[Bandwidth | None] = []
    for one, key in zip(operations, keys, strict=True):
        known = one.kind in BUS_FACTORS or one.kind in _MESSAGES
        if one.began is None or one.ended is None or one.ended <= one.began or not known:
            result.append(None)
            continue
        seconds = (one.ended - one.began) / 1e9
        nranks = _nranks(trace, one)
        found = bandwidth(one.kind, together[key], seconds, nranks) if together[key] else None
        result.append(found)
    return result


def operation_bytes(trace: ProcessTrace, operation: Operation) -> int:
    """The bytes of an operation for bandwidths."""
    return total(operation.kind, _nranks(trace, operation), operation.count, operation.dtype)


def _nranks(trace: ProcessTrace, operation: Operation) -> int:
    communicator = trace.communicator_of(operation)
    return 1 if communicator is None else communicator.nranks
