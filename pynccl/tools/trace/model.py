"""The contents of a trace or a recording of one process.

All times are in nanoseconds of CLOCK_MONOTONIC on the machine of the process. A recording has no
times but ``called``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = [
    "Communicator",
    "GraphLaunch",
    "Operation",
    "ProcessTrace",
    "Range",
    "Signal",
    "Wait",
    "Window",
]


@dataclass(frozen=True)
class Communicator:
    """A communicator, as one of its ranks knows it.

    Attributes:
        id: 16 hexadecimal digits, equal on all ranks, of no other communicator.
        joined: after grow() the id on the ranks that have joined, where it is known.
        parent: the id of the communicator that it was made from.
        name: given by the user.
        creator: the function of nccl.h that made it.
        provider: "host" or "cuda".
        rank: of the process in it.
        nranks: its size.
        device: the index of the device.
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


@dataclass(frozen=True)
class Window:
    """Memory that was registered as a window.

    Attributes:
        communicator: the id of its communicator.
        rank: in it.
        number: from 1, of the windows of the communicator, equal on all ranks.
        address: of the own memory.
        nbytes: its size.
        opened: when it was registered; of one that was open before, the first use of the
            communicator in the trace.
        closed: None: it was open when the trace ended.
    """

    communicator: str
    rank: int
    number: int
    address: int
    nbytes: int
    opened: int
    closed: int | None


class Signal(NamedTuple):
    """Signals that a wait_signal waits for.

    Attributes:
        peer: the rank that they come from.
        times: how many.
        signal: the index of the signal.
        context: the index of the context.
    """

    peer: int
    times: int
    signal: int
    context: int


@dataclass(frozen=True)
class Operation:
    """One operation, in the order of issue.

    Attributes:
        kind: the name of the method of nccl.Communicator: "all_reduce", "send", "put_signal", ...
        communicator: the id of its communicator.
        sequence: from 1, among all operations of the communicator on this rank.
        number: from 1; of a collective among the collectives, of a message among those of its
            direction to or from its peer. Equal on the ranks that take part. None: of no meaning.
        dtype: pynccl's name, "float32".
        count: elements of dtype, as the function of nccl.h counts them.
        op: the operator of a reduction, "sum".
        root: of a rooted collective.
        peer: of a message or a one-sided operation.
        sendbuff: the address that it reads.
        recvbuff: the address that it writes; 0 of a put, which writes to its peer.
        stream: the handle of its stream; 0 is the default stream, which on CPUs is the thread.
        thread: the system's id of the thread that called it.
        group: the number of the group or plan that it was issued in; None outside of groups.
        graph: the number of the graph that the call was captured into; such an operation has not
            run. None: it was not captured.
        called: when the function of nccl.h was called.
        returned: when it had returned; of an operation in a group, when the group had ended.
        began: when the stream reached it; the operations of a group on a stream have the times of
            the group.
        ended: when it was done. None: it was not done, or not timed, when the trace ended.
        failed: the call has thrown.
        sendbytes: bytes that it reads from sendbuff.
        recvbytes: bytes that it writes to recvbuff.
        rank: in the communicator, of which a process may have several ranks. None: not known; the
            process has one.
        window: of a put: the number of the window that it writes to.
        offset: where in the window of the peer, in bytes.
        signal: of a put or signal: the index of the signal.
        context: the index of its context.
        signals: of a wait_signal.
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
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True)
class Wait:
    """A thread or a stream that waits.

    Attributes:
        what: "work" for Work.wait(), "stream" and "event" for their synchronize(), "stream_event"
            for Stream.wait(event).
        communicator: the id of the communicator of the operation that is waited for, where known.
        sequence: of the operation that is waited for, where known.
        stream: the stream that waits, or is waited for by the thread; None: not one stream.
        thread: that called.
        on_device: a stream waits; otherwise the thread.
        began: when the wait began.
        ended: when it was over. None: it was not over when the trace ended.
        rank: in the communicator, as that of an operation.
        called: when the function was called.
        event_stream: the stream that the event was recorded on.
        event_recorded: when the event was recorded, by the host. None: before the trace, or the
            wait is not for an event.
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


@dataclass(frozen=True)
class Range:
    """A range of the user: nccl.range().

    Attributes:
        name: of the user.
        compute: the range is compute that communication can hide behind.
        stream: the stream whose work is in it; None: the thread.
        thread: that called.
        began: when it began, on the stream where there is one.
        ended: when it ended. None: it was open when the trace ended.
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
        graph: the number of the graph; operations that were captured into it have it.
        stream: that it was launched on.
        thread: that called.
        called: when the launch was called.
        returned: when the call had returned.
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
        rank: of the process: RANK, or that in its largest communicator; None without either.
        pid: of the process.
        host: the name of the machine.
        boot: identifies the machine since its start: traces with the same one have one clock.
        epoch: what turns a time into nanoseconds since 1970, by addition.
        timed: there are times of devices, as in a trace; a recording has none.
        began: of the trace.
        ended: of the trace.
        dropped: how many operations came after the limit, and are missing.
        communicators: those that were used, by id and rank: a process may have several ranks of
            one, as init_all() makes them.
        operations: in the order of their calls.
        waits: of threads and streams, for operations or for streams.
        ranges: those of nccl.range().
        launches: of graphs.
        windows: that were registered.
        runs: the captured operations as launches of their graphs ran them, with
            ``nccl.trace(graphs=True)``. They are called when the launch is.
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
    windows: list[Window] = field(default_factory=list)
    runs: list[Operation] = field(default_factory=list)

    def communicator_of(self, one: Operation | Wait | Window) -> Communicator | None:
        """The communicator of an operation, a wait or a window, as the rank that it is of.

        Args:
            one: the operation, the wait or the window.

        Returns:
            The communicator; None where it belongs to none, or to one that the trace does not have.
        """
        return None if one.communicator is None else self.communicator(one.communicator, one.rank)

    def communicator(self, id: str, rank: int | None = None) -> Communicator | None:
        """A communicator, as one of its ranks in this process.

        The first files have one rank of each communicator only: what they say of it is taken to be
        so of the others.

        Args:
            id: of the communicator.
            rank: of this process in it; None is any one.

        Returns:
            The communicator; None where the trace does not have it.
        """
        if rank is not None and (found := self.communicators.get((id, rank))) is not None:
            return found
        any_one = next((one for one in self.communicators.values() if one.id == id), None)
        return any_one if any_one is None or rank is None else replace(any_one, rank=rank)
