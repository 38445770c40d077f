"""Proves that a launch of a graph has the time limits of its communicators: waits for a rank that
does not launch it raise an error that names the launch, and launches that end in time do not
expire, however many there are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_life import check_works
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_LIMIT = 0.6  # seconds; a wait that ignores it ends with the launch
_LONG = 50.0
_ABSENT = 1
_ATTEMPTS = 5


class Member:
    """A rank with a graph of two operations, captured under the short limit."""

    def __init__(self, rank: Rank, index: int = 1) -> None:
        self.rank = rank
        self.comms: list[nccl.Communicator] = []
        self.stream = rank.stream()
        self.buffer = rank.memory.put(np.ones(1000, np.float32))
        self.comm = self.communicator(index)
        self.limit(_LIMIT)
        self.graph = self.capture(self.comm, self.comm)
        self.limit(_LONG)

    def communicator(self, index: int) -> nccl.Communicator:
        """A communicator with one operation done: the first takes long on a busy machine."""
        comm = self.rank.communicator(index)
        self.all_reduce(comm)
        self.stream.synchronize()
        self.comms.append(comm)
        return comm

    def limit(self, seconds: float) -> None:
        for comm in self.comms:
            comm.timeout = seconds

    def all_reduce(self, comm: nccl.Communicator) -> None:
        comm.all_reduce(self.buffer, nccl.MAX, stream=self.stream)

    def capture(self, *comms: nccl.Communicator) -> nccl.Graph:
        with nccl.capture(self.stream) as graph:
            for comm in comms:
                self.all_reduce(comm)
        return graph

    def launch(self) -> None:
        self.graph.launch(self.stream)

    def barrier(self) -> None:
        self.rank.comm.all_reduce(self.buffer, nccl.MAX)
        self.stream.synchronize()

    def close(self) -> None:
        """Free the communicators and the graph: the next test may run in this process."""
        for comm in self.comms:
            comm.abort()
        self.graph.close()

    def stays_away(self) -> bool:
        """Whether this is the absent rank, which aborts once the other one has its error. The limit
        applies from here on.
        """
        self.limit(_LIMIT)
        if self.rank.rank != _ABSENT:
            return False
        self.rank.wait_event("done", 0)
        self.close()
        return True

    def wait(self) -> None:
        """Raise the communicator's error, too: a GPU's stream completes if its work was ended."""
        self.stream.synchronize()
        if error := self.comm.async_error():
            raise error


# The actions of all ranks, then of rank 0 alone.
Acts = tuple[Callable[[], object], Callable[[], object]]


def _nothing() -> None:
    pass


def _once(member: Member) -> Acts:
    return _nothing, member.launch


def _after_others(member: Member) -> Acts:
    """In a burst: only the first launch has an event."""

    def launch_some() -> None:
        for _ in range(20):
            member.launch()

    return launch_some, launch_some


def _on_a_handle(member: Member) -> Acts:
    """The stream may no longer exist when the monitor checks the launch."""
    handle = member.stream.handle
    return lambda: member.graph.launch(handle), lambda: member.graph.launch(handle)


def _in_a_scope(member: Member) -> Acts:

    def launch_in_scope() -> None:
        member.comm.timeout = _LONG
        member.launch()
        with nccl.deadline(_LIMIT):
            member.launch()
        member.launch()

    return _nothing, launch_in_scope


def _of_two_communicators(member: Member) -> Acts:
    """The stream waits for both, one after the other."""
    other = member.communicator(2)
    member.graph = member.capture(other, member.comm, member.comm)
    return member.launch, member.launch


def _during_a_capture(member: Member) -> Acts:
    """Of another stream, in the most restrictive mode."""

    def launch() -> None:
        other = member.rank.stream()
        with nccl.capture(other, mode="global") as graph:
            member.launch()
        graph.close()

    return launch, launch


def _after_a_closed_one(member: Member) -> Acts:
    """A graph that was launched and closed."""
    before = member.capture(member.comm)

    def launch_and_close() -> None:
        before.launch(member.stream)
        before.close()

    return launch_and_close, member.launch


_LAUNCHES = {
    "once": _once,
    "after others": _after_others,
    "on a handle": _on_a_handle,
    "in a scope": _in_a_scope,
    "of two communicators": _of_two_communicators,
    "during a capture": _during_a_capture,
    "after a closed one": _after_a_closed_one,
}


# On GPUs the abort takes 5 s each time: it waits for the graph.
_ON_GPUS = _LAUNCHES if FULL else ("in a scope", "of two communicators")


@pytest.mark.parametrize(
    ("provider", "what"),
    [
        *(("host", what) for what in _LAUNCHES),
        *(pytest.param("cuda", what, marks=pytest.mark.gpu) for what in _ON_GPUS),
    ],
    indirect=["provider"],
)
@on_ranks(2, by="provider", ids=3, timeout=40)
def test_a_launch_with_a_missing_rank_is_an_error(rank: Rank, what: str) -> None:
    member = Member(rank)
    together, alone = _LAUNCHES[what](member)
    together()
    member.stream.synchronize()
    if member.stays_away():
        return
    alone()
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError)) as raised:
        member.wait()
    raised.match(
        r"a graph launch with 2 operations up to all_reduce #3 \(float32, count=1000, max\)"
        if what != "of two communicators"
        else "a graph launch with (2 operations up to all_reduce #5|all_reduce #2)"
    )
    raised.match(f"on rank {rank.rank} did not complete within {_LIMIT:g} s")
    if rank.provider == "host":
        assert isinstance(raised.value, nccl.NcclTimeoutError)
        assert raised.value.missing_ranks == [_ABSENT]
    with pytest.raises((nccl.NcclTimeoutError, ValueError), match=r"within 0\.6 s|was closed"):
        member.launch()
    member.limit(_LONG)
    with member.comm.shrink([_ABSENT], abort=True) as smaller:
        check_works(rank, smaller, [0])
    rank.set_event("done")
    member.close()


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_a_captured_operation_has_no_limit(rank: Rank) -> None:
    member = Member(rank)
    assert [record.state for record in member.comm.flight_record()][-2:] == ["captured"] * 2
    if rank.rank != _ABSENT:
        member.launch()
    with nccl.deadline(_LONG):  # wakes the monitor while the stream waits for the launch
        time.sleep(2 * _LIMIT)
    if rank.rank == _ABSENT:
        member.launch()
    member.wait()
    assert member.comm.flight_record()[-1].state == "captured"
    member.close()


@on_ranks(2, by="provider", ids=2, timeout=40)
def test_an_operation_before_a_capture_has_a_limit(rank: Rank) -> None:
    """The last operation outside of graphs is watched, even without an event."""
    member = Member(rank)
    if member.stays_away():
        return
    other = rank.stream()
    for _ in range(3):
        member.all_reduce(member.comm)
    with nccl.capture(other) as graph:
        member.comm.all_reduce(member.buffer, nccl.MAX, stream=other)
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError), match=r"all_reduce #[456] "):
        member.wait()
    rank.set_event("done")
    graph.close()
    member.close()


@on_ranks(2, ids=2, timeout=40)
def test_a_launch_in_the_calling_thread_ends(rank: Rank) -> None:
    member = Member(rank)
    member.graph.launch(0)
    if member.stays_away():
        return
    with pytest.raises(nccl.NcclTimeoutError, match=r"cuGraphLaunch on rank 0 .* within 0\.6 s"):
        member.graph.launch(0)
    rank.set_event("done")
    member.close()


def _launch_and_pause(member: Member, limit: float) -> None:
    """First with a launch pending all the time, then with pauses."""
    rank = member.rank
    member.comm.timeout = limit
    events = [rank.event(), rank.event()]
    end = time.monotonic() + 2.5 * limit
    turns = rank.memory.put(np.zeros(1, np.float32))
    while True:
        for event in events:
            event.synchronize()
            member.launch()
            event.record(member.stream)
        over = rank.memory.put(np.full(1, time.monotonic() > end, np.float32))
        rank.comm.all_reduce(over, nccl.MAX, out=turns)
        if rank.memory.get(turns)[0]:
            break
    for _ in range(2):
        time.sleep(1.5 * limit)
        member.launch()
    member.stream.synchronize()


@on_ranks(2, by="provider", ids=1 + _ATTEMPTS, timeout=300)
def test_launches_in_time_do_not_expire(rank: Rank) -> None:
    """On a busy machine the other rank may be late, but not within each limit."""
    for attempt in range(_ATTEMPTS):
        member = Member(rank, 1 + attempt)
        with contextlib.suppress(nccl.NcclTimeoutError, nccl.NcclRemoteError):
            _launch_and_pause(member, 2.0**attempt)
        late = rank.memory.put(np.array([member.comm.expired], np.float32))
        rank.comm.all_reduce(late, nccl.MAX)
        if not rank.memory.get(late)[0]:
            records = member.comm.flight_record()
            assert [record.operation for record in records] == 3 * ["all_reduce"]  # no launch
            member.graph.close()
            member.comm.close()
            return
        member.comm.abort()
    raise AssertionError(f"launches have expired {_ATTEMPTS} times")


@pytest.mark.parametrize("how", ["close", "abort"])
@on_ranks(2, by="provider", ids=3, timeout=40)
def test_the_end_of_a_communicator_after_a_launch(rank: Rank, how: str) -> None:
    """One of two communicators of a graph is ended. The limit of the other one still applies."""
    member = Member(rank)
    other = member.communicator(2)
    both, alone = member.capture(member.comm, other), member.capture(other)
    both.launch(member.stream)
    member.stream.synchronize()
    member.barrier()
    getattr(member.comm, how)()
    with pytest.raises(ValueError, match="was closed"):
        both.launch(member.stream)
    member.stream = rank.stream()
    other.timeout = _LIMIT
    if rank.rank == _ABSENT:
        rank.wait_event("done", 0)
        other.abort()
        return
    member.comm = other
    alone.launch(member.stream)
    with pytest.raises((nccl.NcclTimeoutError, nccl.NcclRemoteError), match="a graph launch with"):
        member.wait()
    rank.set_event("done")
    other.abort()


@on_ranks(1, by="provider", ids=2, timeout=40)
def test_a_launch_in_a_capture_is_refused(rank: Rank) -> None:
    """The capture stays valid, and nothing is pending."""
    member = Member(rank)
    other = rank.stream()
    member.limit(_LIMIT)
    with nccl.capture(other) as outer:
        member.comm.all_reduce(member.buffer, nccl.MAX, stream=other)
        with pytest.raises(ValueError, match="graph: the stream is being captured, and a launch"):
            member.graph.launch(other)
    with nccl.deadline(_LONG):  # wakes the monitor
        time.sleep(2 * _LIMIT)
    assert not member.comm.expired
    member.limit(_LONG)
    for graph in (member.graph, outer):
        graph.launch(other)
    other.synchronize()
    outer.close()
    member.close()
