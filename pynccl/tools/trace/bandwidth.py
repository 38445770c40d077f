"""Bandwidths as nccl-tests defines them.

The size of an operation is that of its larger buffer: the tensor of all_reduce, broadcast, reduce
and send/recv, all ranks' blocks together of the others. algbw is that size over the time. busbw is
algbw times the share of the size that the busiest link must carry, for every algorithm, so that it
can be compared with the speed of the hardware for any number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pynccl.tools.trace.model import Operation, ProcessTrace

__all__ = [
    "BUS_FACTORS",
    "Bandwidth",
    "bandwidth",
    "bus_factor",
    "operation_bandwidths",
    "operation_bytes",
]


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

_MESSAGES = ("send", "recv", "put_signal")


class Bandwidth(NamedTuple):
    """Bandwidths in GB/s, a GB being 1e9 bytes."""

    algbw: float
    busbw: float


def bus_factor(collective: str, nranks: int) -> float:
    """What turns algbw into busbw.

    Args:
        collective: a key of BUS_FACTORS, or "send", "recv" or "put_signal".
        nranks: how many ranks there are.

    Raises:
        KeyError: no such collective.
        ValueError: nranks is below 1.
    """
    if nranks < 1:
        raise ValueError(f"nranks: {nranks} is below 1")
    return BUS_FACTORS["send_recv" if collective in _MESSAGES else collective](nranks)


def bandwidth(collective: str, nbytes: int, seconds: float, nranks: int) -> Bandwidth:
    """The bandwidths of an operation.

    Args:
        collective: see bus_factor().
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


def operation_bytes(operation: Operation, nranks: int) -> int:
    """The size of an operation: that of the larger buffer on any rank, equal on all ranks.

    Args:
        operation: of a trace.
        nranks: the size of its communicator.
    """
    larger = max(operation.sendbytes, operation.recvbytes)
    if operation.kind == "gather":  # of which only the root has the larger buffer
        return max(larger, nranks * operation.sendbytes)
    if operation.kind == "scatter":
        return max(larger, nranks * operation.recvbytes)
    return larger


def operation_bandwidths(
    trace: ProcessTrace, operations: Sequence[Operation] | None = None
) -> list[Bandwidth | None]:
    """The bandwidths of the operations of a trace, in their order.

    The operations of a group on a stream have the times of the group. Each one has the bandwidth
    of the bytes of all those of its kind and communicator among them.

    Args:
        trace: of one process.
        operations: those of its runs, for example; None is all that were called.

    Returns:
        None for an operation that was not timed, or has no bandwidth: a signal, a barrier.
    """
    together: dict[tuple[object, ...], int] = defaultdict(int)
    keys: list[tuple[object, ...]] = []
    sizes: list[tuple[int, int]] = []
    operations = trace.operations if operations is None else operations
    for index, operation in enumerate(operations):
        communicator = trace.communicator_of(operation)
        nranks = 1 if communicator is None else communicator.nranks
        sizes.append((operation_bytes(operation, nranks), nranks))
        group = operation.group, operation.stream, operation.called
        place = index if operation.group is None else group
        keys.append((place, operation.kind, operation.communicator, operation.rank))
        together[keys[-1]] += sizes[-1][0]
    result: list[Bandwidth | None] = []
    for operation, key, (_, nranks) in zip(operations, keys, sizes, strict=True):
        began, ended = operation.began, operation.ended
        known = operation.kind in BUS_FACTORS or operation.kind in _MESSAGES
        if began is None or ended is None or ended <= began or not known or not together[key]:
            result.append(None)
        else:
            seconds = (ended - began) / 1e9
            result.append(bandwidth(operation.kind, together[key], seconds, nranks))
    return result
