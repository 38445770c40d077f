"""Proves how recordings are combined: fewer ranks, late starts, full recordings, threads."""

from __future__ import annotations

import dataclasses

import pytest

from pynccl.tools.replay import ReplayError, replay
from pynccl.tools.replay.check import check
from pynccl.tools.replay.recorded import gather
from pynccl.tools.trace.model import GraphLaunch, ProcessTrace
from tests.support.recordings import World

pytestmark = pytest.mark.usefixtures("kept_ranks")


def test_communicators_are_cut_to_the_replayed_ranks() -> None:
    world = World(4)
    other = world.communicator("b", [3, 1, 0])
    world.all("broadcast", other, root=0)  # process 3
    world.all("broadcast", other, root=2)  # process 0
    world.call(0, "send", peer=3)
    world.call(3, "recv", peer=0)
    world.call(1, "send", other, peer=2)
    world.call(0, "recv", other, peer=1)
    recorded = gather(world.traces, 2)
    assert recorded.comms[other].ranks == (1, 0)
    assert other in recorded.comms
    assert "0" * 16 not in recorded.comms  # no operation remains on it
    roots = [operation.root for operation in recorded.processes[0].operations[:2]]
    assert roots == [0, 1]  # the first remaining rank, which is process 0
    assert [one.peer for one in recorded.processes[1].operations[2:]] == [1]
    assert "rank 0: 1 operations to or from excluded ranks are dropped" in recorded.notes
    assert f"communicator {other} has 2 of its 3 ranks" in recorded.notes
    assert replay(world.traces, ranks=2).ok


def test_operations_before_a_late_recording_are_dropped() -> None:
    world = World(2)
    for _ in range(5):
        world.all("all_reduce")
        world.call(0, "send", peer=1, stream=16)
        world.call(1, "recv", peer=0, stream=16)
    world.traces[1].operations = world.traces[1].operations[3:]
    recorded = gather(world.traces)
    assert check(recorded) == []
    # Rank 1 begins with its receive #2; the all-reduce #2 is not in its recording.
    assert [one.number for one in recorded.processes[0].operations] == [2, 3, 3, 4, 4, 5, 5]
    assert "rank 0: 3 operations before others began to record are dropped" in recorded.notes
    assert replay(world.traces).ok


def test_operations_beyond_a_full_recording_are_dropped() -> None:
    world = World(2)
    for _ in range(5):
        world.all("all_reduce")
    world.traces[1].operations = world.traces[1].operations[:3]
    assert check(gather(world.traces))
    world.traces[1].dropped = 2
    recorded = gather(world.traces)
    assert check(recorded) == []
    assert len(recorded.processes[0].operations) == 3
    assert replay(world.traces).operations == 6


def test_failed_operations_are_compared() -> None:
    """A rank that waited in vain has a failed call that the other ranks lack."""
    world = World(2)
    world.all("all_reduce")
    world.call(0, "all_reduce", failed=True)
    (finding,) = check(gather(world.traces))
    assert (finding.kind, finding.ranks, finding.number) == ("behind", [1], 2)


def test_launches_are_replayed_among_the_other_calls() -> None:
    world = World(2)
    world.all("all_reduce", graph=1)
    world.all("all_reduce")
    for trace in world.traces:
        called = trace.operations[1].called
        trace.launches = [
            GraphLaunch(1, 0, 1, time, time, None, None) for time in (called + 1, called - 1)
        ]
    operations = gather(world.traces).processes[1].operations
    assert [one.called - called for one in operations] == [-1, 0, 1]
    result = replay(world.traces)
    assert (result.ok, result.operations) == (True, 6)


def test_grown_communicators_have_one_id() -> None:
    world = World(2)
    old, new = world.communicator("c", []), "d" * 16
    for rank, (id, joined) in enumerate(((old, new), (new, None))):
        comm = next(iter(world.traces[rank].communicators.values()))
        world.traces[rank].communicators[id, rank] = dataclasses.replace(
            comm, id=id, joined=joined, rank=rank
        )
    world.members[old] = [0, 1]
    world.all("all_reduce", old)
    operations = world.traces[1].operations
    operations[0] = dataclasses.replace(operations[0], communicator=new)
    recorded = gather(world.traces)
    assert recorded.comms[old].ranks == (0, 1)
    assert replay(world.traces).ok


def test_processes_without_ranks_of_their_own() -> None:
    """The rank of such a trace is that in its largest communicator."""
    world = World(4)
    for processes in ([0, 1], [2, 3]):
        world.all("all_reduce", world.communicator(f"b{processes[0]}", processes))
    world.all("all_reduce")
    for place, trace in enumerate(world.traces):
        trace.rank = place % 2
    recorded = gather(world.traces[::-1])
    assert [process.rank for process in recorded.processes] == [0, 1, 2, 3]
    assert [process.trace.pid for process in recorded.processes] == [1000, 1001, 1002, 1003]


def test_processes_with_several_ranks() -> None:
    first, second = World(2).traces
    first.communicators |= second.communicators
    with pytest.raises(ReplayError, match="process 1000 has several ranks of communicator 0000"):
        gather([first])


def test_unrelated_recordings() -> None:
    with pytest.raises(ReplayError, match="traces: expected at least one recording"):
        gather([])
    with pytest.raises(ReplayError, match="two recordings are of rank 0 of communicator 0000"):
        gather(World(1).traces * 2)
    first, second = World(2).traces[0], World(3).traces[1]
    with pytest.raises(ReplayError, match="which has 2 ranks in other recordings"):
        gather([first, second])
    clash = dataclasses.replace(World(2).traces[0], rank=7)
    with pytest.raises(ReplayError, match="two recordings are of rank 0 of communicator 0000"):
        gather([first, clash])


def test_operations_that_cannot_be_replayed() -> None:
    world = World(1)
    world.all("all_reduce")
    operations = world.traces[0].operations
    good = operations[0]
    for change, says in (
        ({"kind": "new"}, "does not support the operation 'new'"),
        ({"dtype": "float4"}, "has the unsupported dtype 'float4'"),
        ({"communicator": "f" * 16}, "which the recording does not describe"),
    ):
        operations[0] = dataclasses.replace(good, **change)  # type: ignore[arg-type]
        with pytest.raises(ReplayError, match=says):
            replay(world.traces)


def test_a_recording_without_operations() -> None:
    empty = ProcessTrace(0, 1, "", "", 0, False, 0, 0)
    assert replay([empty]).ok
