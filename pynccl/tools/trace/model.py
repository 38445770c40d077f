"""The contents of a trace or a recording of one process.

All times are in nanoseconds of CLOCK_MONOTONIC on the machine of the process. A recording has no
times except ``called``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "Communicator",
    "GraphLaunch",
    "KernelTimes",
    "Operation",
    "ProcessTrace",
    "ProxyWaits",
    "Range",
    "TraceError",
    "Wait",
]


_MOST_RANKS = 1 << 20  # larger than any job


class TraceError(ValueError):
    """A file is not a complete trace, or traces do not belong together."""


@dataclass(frozen=True)
class Communicator:
    """A communicator, as seen by one of its ranks.

    Attributes:
        id: 16 hexadecimal digits, equal on all ranks, unique to the communicator.
        joined: after grow(), the id on the ranks that joined, if known.
        parent: the id of the communicator that it was derived from.
        name: set by the user.
        creator: the nccl.h function that created it.
        provider: "host" or "cuda".
        rank: the process's rank in it.
        nranks: its size.
        device: index of the device.
    """

    id: str
    joined: str | None
    parent: str | None
    name: str | None
    creator: str
    provider: str
    rank: int
    nranks: int
    device: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.nranks <= _MOST_RANKS:
            raise TraceError(f"communicator {self.id}: rank {self.rank} of {self.nranks}")


class KernelTimes(NamedTuple):
    """The channels of NCCL's kernel that ran an operation, in nanoseconds of the GPU's clock.

    Attributes:
        first, last: the lowest and the highest channel number.
        started: number of channels that have started.
        stopped: number of channels that have ended; only these have times.
        duration: from the first start to the last end.
        shortest: the shortest time of a channel.
        longest: the longest time of a channel.
    """

    first: int
    last: int
    started: int
    stopped: int
    duration: int
    shortest: int
    longest: int


class ProxyWaits(NamedTuple):
    """What NCCL's proxies, which transfer data over the network, waited for in an operation.

    Times are nanoseconds, summed over the steps of all channels. Since steps overlap, a sum may
    exceed the duration of the operation.

    Attributes:
        operations: number of pairs of a channel and a direction.
        steps: number of transfers.
        unfinished: channels and transfers that had not ended when the trace ended.
        send_gpu: for the kernel to fill a buffer.
        send_peer: for the peer to offer a buffer; part of send_gpu before NCCL 2.27.
        send: for the network to send it.
        receive: for the data of the peer.
        receive_flush: for the data to be visible to the GPU.
        receive_gpu: for the kernel to empty a buffer.
    """

    operations: int
    steps: int
    unfinished: int
    send_gpu: int
    send_peer: int
    send: int
    receive: int
    receive_flush: int
    receive_gpu: int


@dataclass(frozen=True)
class Operation:
    """One operation, in the order of issue.

    Attributes:
        kind: the name of the method of nccl.Communicator: "all_reduce", "send", "put_signal", ...
        communicator: the id of its communicator.
        sequence: from 1, among all operations of the communicator on this rank.
        number: from 1; for a collective, among the collectives; for a message, among those of its
            direction to or from its peer. Equal on the participating ranks. None if not applicable.
        dtype: pynccl's name, such as "float32".
        count: elements of dtype, as the nccl.h function counts them.
        op: the operator of a reduction, such as "sum".
        root: of a rooted collective.
        peer: of a message or a one-sided operation.
        sendbuff: the address that it reads.
        recvbuff: the address that it writes; 0 for a put, which writes to its peer.
        stream: the handle of its stream; 0 is the default stream, which on CPUs is the thread.
        thread: the system's id of the calling thread.
        group: number of the group or plan that it was issued in; None outside of groups.
        graph: number of the graph that the call was captured into; such an operation has not run.
            None if it was not captured.
        called: when the nccl.h function was called.
        returned: when it returned; for an operation in a group, when the group ended.
        began: when the stream reached it; operations of a group on one stream share the times of
            the group.
        ended: when it completed. None if it was not timed, or not complete when the trace ended.
        failed: whether the call raised.
        sendbytes: bytes read from sendbuff.
        recvbytes: bytes written to recvbuff.
        rank: rank in the communicator; a process may have several ranks in one. None if unknown;
            the process then has one.
        window: for a put, the number of the window that it writes to.
        offset: offset in the peer's window, in bytes.
        signal: for a put or signal, the index of the signal.
        context: index of its context.
        algorithm, protocol: those that NCCL chose for a collective, such as "Ring" and "LL128".
            None without nccl.explain().
        channels: the number of NCCL's channels, if NCCL reports it.
        launch: number of the kernel launch, if NCCL reports it; operations with the same number ran
            in one kernel.
        kernel: the times of the kernel's channels, from NCCL 2.26 on.
        proxy: what the proxies waited for. None if the operation used no network.
    """

    kind: str
    communicator: str
    sequence: int
    number: int | None
    dtype: str
    count: int
    op: str | None
    root: int | None
    peer: int | None
    sendbuff: int
    recvbuff: int
    stream: int
    thread: int
    group: int | None
    graph: int | None
    called: int
    returned: int | None
    began: int | None
    ended: int | None
    failed: bool
    sendbytes: int
    recvbytes: int
    rank: int | None = None
    window: int | None = None
    offset: int | None = None
    signal: int | None = None
    context: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    launch: int | None = None
    kernel: KernelTimes | None = None
    proxy: ProxyWaits | None = None


@dataclass(frozen=True)
class Wait:
    """A wait of a thread or a stream.

    Attributes:
        what: "work" for Work.wait(), "stream" and "event" for their synchronize(), "stream_event"
            for Stream.wait(event).
        communicator: the id of the awaited operation's communicator, if known.
        sequence: the awaited operation's sequence number, if known.
        stream: the stream that waits, or that the thread waits for; None if it is not one stream.
        thread: the calling thread.
        on_device: whether a stream waits; otherwise the thread does.
        began: when the wait began.
        ended: when it was over. None if it was not over when the trace ended.
        rank: rank in the communicator, as for an operation.
        called: when the function was called.
        event_stream: the stream that the event was recorded on.
        event_recorded: when the host recorded the event. None if that was before the trace, or if
            the wait is not for an event.
    """

    what: str
    communicator: str | None
    sequence: int | None
    stream: int | None
    thread: int
    on_device: bool
    began: int
    ended: int | None
    rank: int | None = None
    called: int | None = None
    event_stream: int | None = None
    event_recorded: int | None = None

    @property
    def called_at(self) -> int:
        """When the function was called or, if that is unknown, when the wait began."""
        return self.began if self.called is None else self.called


@dataclass(frozen=True)
class Range:
    """A user-defined range: nccl.range().

    Attributes:
        name: set by the user.
        compute: whether it is compute that communication can hide behind.
        stream: the stream whose work it covers; None for the thread.
        thread: the calling thread.
        began: when it began, on the stream if there is one.
        ended: when it ended. None if it was open when the trace ended.
    """

    name: str
    compute: bool
    stream: int | None
    thread: int
    began: int
    ended: int | None


@dataclass(frozen=True)
class GraphLaunch:
    """A launch of a nccl.Graph.

    Attributes:
        graph: number of the graph, which the operations captured into it also carry.
        stream: the stream that it was launched on.
        thread: the calling thread.
        called: when the launch was called.
        returned: when the call returned.
        began: when the stream reached it.
        ended: when it was done.
    """

    graph: int
    stream: int
    thread: int
    called: int
    returned: int
    began: int | None
    ended: int | None


@dataclass
class ProcessTrace:
    """The trace or recording of one process.

    Times are in nanoseconds on the clock of the process.

    Attributes:
        rank: the process's rank: RANK, or that in its largest communicator; None without either.
        pid: the process id.
        host: the name of the machine.
        boot: identifies the machine's current boot; traces with the same one share a clock.
        epoch: added to a time, gives nanoseconds since 1970.
        timed: whether there are device times, as in a trace; a recording has none.
        began: when the trace began.
        ended: when the trace ended.
        dropped: number of operations that were not recorded because of the limit.
        communicators: the communicators used, by id and rank; a process may have several ranks in
            one, such as after init_all().
        operations: in the order of their calls.
        waits: waits of threads and streams for operations or streams.
        ranges: those of nccl.range().
        launches: launches of graphs.
        runs: the captured operations as run by launches of their graphs, with
            ``nccl.trace(graphs=True)``. They count as called when the launch is.
    """

    rank: int | None
    pid: int
    host: str
    boot: str
    epoch: int
    timed: bool
    began: int
    ended: int
    dropped: int = 0
    communicators: dict[tuple[str, int], Communicator] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    launches: list[GraphLaunch] = field(default_factory=list)
    runs: list[Operation] = field(default_factory=list)

    def communicator_of(self, one: Operation | Wait) -> Communicator | None:
        """The communicator of an operation or a wait, for its rank.

        Args:
            one: the operation or the wait.

        Returns:
            The communicator; None if it has none, or one that is not in the trace.
        """
        return None if one.communicator is None else self.communicator(one.communicator, one.rank)

    def communicator(self, id: str, rank: int | None = None) -> Communicator | None:
        """A communicator, as seen by one of its ranks in this process.

        Args:
            id: the id of the communicator.
            rank: rank of this process in it; None selects any of its ranks.

        Returns:
            The communicator; None if it is not in the trace.
        """
        if rank is not None:
            return self.communicators.get((id, rank))
        return next((one for one in self.communicators.values() if one.id == id), None)
