"""What NCCL chose and waited for in traced operations, from the events of its profiler."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace

from pynccl._internal import plugin
from pynccl.tools.trace.model import KernelTimes, Operation, ProxyWaits

__all__ = ["with_algorithms"]

# The kinds of operations by NCCL's names. all_to_all, gather and scatter are several messages.
_KINDS = {
    "AllReduce": "all_reduce",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Send": "send",
    "Recv": "recv",
}
_Key = tuple[object, ...]


def with_algorithms(operations: list[Operation], events: list[plugin.Event]) -> list[Operation]:
    """Return the operations, with the profiler's information on those that NCCL has issued.

    An event belongs to the operation of its kind, rank and buffers that was being called when the
    event was recorded or, with a non-blocking communicator, to the last one before. Of equal
    operations in a group, the first event belongs to the first.
    """
    waiting: dict[_Key, deque[int]] = defaultdict(deque)
    for index, one in enumerate(operations):
        waiting[_key_of_operation(one)].append(index)
    result = list(operations)
    for event in events:
        candidates = waiting.get(_key_of_event(event), deque())
        while len(candidates) > 1 and _is_over(result, candidates, event.time):
            candidates.popleft()
        if not candidates or result[candidates[0]].called > event.time:
            continue
        index = candidates.popleft()
        result[index] = replace(
            result[index],
            algorithm=plugin.display_name(event.algorithm.decode(), plugin.ALGORITHMS),
            protocol=plugin.display_name(event.protocol.decode(), plugin.PROTOCOLS),
            channels=event.channels or None,
            launch=event.launch or None,
            kernel=_kernel(event),
            proxy=_proxy(event),
        )
    return result


def _kernel(event: plugin.Event) -> KernelTimes | None:
    channels = [
        number for number in range(event.started.bit_length()) if event.started >> number & 1
    ]
    if not channels:
        return None
    duration = event.ended - event.began
    return KernelTimes(
        channels[0],
        channels[-1],
        len(channels),
        event.stopped,
        duration,
        event.shortest,
        event.longest,
    )


def _proxy(event: plugin.Event) -> ProxyWaits | None:
    if not event.proxies:
        return None
    return ProxyWaits(event.proxies, event.steps, event.open, *event.waits)


def _is_over(operations: list[Operation], candidates: deque[int], time: int) -> bool:
    """Whether the first candidate had returned, and the second one was called, before a time."""
    first, second = operations[candidates[0]], operations[candidates[1]]
    return first.returned is not None and first.returned < time and second.called <= time


def _key_of_operation(one: Operation) -> _Key:
    if one.kind in ("send", "recv"):
        return one.kind, one.rank, one.sendbuff or one.recvbuff, one.peer
    return one.kind, one.rank, one.sendbuff, one.recvbuff


def _key_of_event(event: plugin.Event) -> _Key:
    kind = _KINDS.get(event.function.decode())
    if kind in ("send", "recv"):
        return kind, event.rank, event.sendbuff, event.peer
    return kind, event.rank, event.sendbuff, event.recvbuff
