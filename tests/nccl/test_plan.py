"""Proves that a plan gives the results of its operations at each call, in groups and on streams,
that it keeps its objects alive until it is closed, and that a mistake in recording or calling one
sends nothing.
"""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import when_blocked
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, True), (4, False)])
@on_ranks(by="provider threads")
def test_values(rank: Rank) -> None:
    """Collectives and a ring of messages in one plan, with new contents each time."""
    memory, comm, nranks = rank.memory, rank.comm, rank.nranks
    after, before = (rank.rank + 1) % nranks, (rank.rank - 1) % nranks
    arrays = {
        "reduced": np.zeros(1000, np.float32),
        "maximum": np.zeros(10, np.int64),
        "own": np.zeros(3, np.int32),
        "gathered": np.zeros(3 * nranks, np.int32),
        "sent": np.zeros(70_000, np.uint8),
        "got": np.zeros(70_000, np.uint8),
    }
    buffers = {name: memory.put(array) for name, array in arrays.items()}
    with nccl.plan() as plan:
        comm.recv(buffers["got"], before)
        comm.all_reduce(buffers["reduced"])
        with nccl.group():
            comm.all_reduce(buffers["maximum"], nccl.MAX)
            comm.send(buffers["sent"], after)
        comm.all_gather(buffers["own"], out=buffers["gathered"])
    assert len(plan) == 5
    assert repr(plan) == "<pynccl.nccl.Plan of 5 operations>"
    assert not memory.get(buffers["got"]).any()
    for turn in range(20):
        buffers["reduced"][:] = rank.rank + turn
        buffers["maximum"][:] = rank.rank * turn
        buffers["own"][:] = 100 * rank.rank + turn
        buffers["sent"][:] = (rank.rank + turn) % 256
        plan()
        got = {name: memory.get(buffer) for name, buffer in buffers.items()}
        assert (got["reduced"] == sum(r + turn for r in range(nranks))).all()
        assert (got["maximum"] == (nranks - 1) * turn).all()
        assert (got["gathered"] == np.repeat(100 * np.arange(nranks) + turn, 3)).all()
        assert (got["got"] == (before + turn) % 256).all()


@on_ranks(2, by="provider")
def test_streams(rank: Rank) -> None:
    """The recorded stream is used, unless the call names another one."""
    memory, comm = rank.memory, rank.comm
    recorded, other = rank.stream(), rank.stream()
    buffer = memory.put(np.ones(1000, np.float64))
    with nccl.plan() as plan:
        comm.all_reduce(buffer, stream=recorded)
    plan()
    recorded.synchronize()
    assert (memory.get(buffer) == rank.nranks).all()
    plan(stream=other)
    other.synchronize()
    assert (memory.get(buffer) == rank.nranks**2).all()
    plan(stream=None)
    recorded.synchronize()
    assert (memory.get(buffer) == rank.nranks**3).all()
    with pytest.raises(TypeError, match="stream: expected"):
        plan(stream="fast")
    with pytest.raises(TypeError):
        plan(other)
    with pytest.raises(TypeError):
        plan(streams=other)


@on_ranks(2)
def test_inside_a_group_and_a_plan(rank: Rank) -> None:
    """A plan in a group joins it; a plan in a plan joins its recording."""
    comm, peer = rank.comm, 1 - rank.rank
    sent, got = np.full(4, rank.rank), np.full(4, -1)
    with nccl.plan() as receives:
        comm.recv(got, peer)
    with nccl.group():
        receives()
        assert (got == -1).all()
        comm.send(sent, peer)
    assert (got == peer).all()
    got[:] = -1
    with nccl.plan() as both:
        receives()
        comm.send(sent, peer)
    receives.close()
    assert len(both) == 2
    both()
    assert (got == peer).all()


@on_ranks(2, ids=2)
def test_a_closed_communicator_sends_nothing(rank: Rank) -> None:
    first, second = rank.comm, rank.communicator(1)
    buffers = np.ones(3), np.ones(3)
    with nccl.plan() as plan:
        first.all_reduce(buffers[0])
        second.all_reduce(buffers[1])
    plan()
    assert (np.array(buffers) == rank.nranks).all()
    second.close()
    with pytest.raises(
        ValueError, match="closed, and operation 2 of 2 uses it; nothing was issued"
    ):
        plan()
    assert (np.array(buffers) == rank.nranks).all()
    first.all_reduce(buffers[0])
    assert (buffers[0] == rank.nranks**2).all()


@on_ranks(2)
def test_an_exception_in_the_block(rank: Rank) -> None:
    """The plan is empty, and the communicators stay usable."""
    comm, buffer = rank.comm, np.ones(3)
    plan = nccl.plan()
    assert repr(plan).startswith("<pynccl.nccl.Plan not ready: it has no recording")
    with pytest.raises(ValueError, match="it has no recording"):
        plan()
    with pytest.raises(KeyError), plan:  # noqa: PT012
        assert repr(plan).startswith("<pynccl.nccl.Plan not ready: it is being recorded")
        comm.all_reduce(buffer)
        for call in (plan, plan.close):
            with pytest.raises(ValueError, match="it is being recorded"):
                call()
        raise KeyError
    assert repr(plan).startswith("<pynccl.nccl.Plan not ready: an exception ended its recording")
    assert len(plan) == 0
    with pytest.raises(ValueError, match="an exception ended its recording"):
        plan()
    with pytest.raises(ValueError, match="recorded before"), plan:
        pass
    # A wrong argument is refused when it is recorded.
    wrong = nccl.plan()
    with pytest.raises(ValueError, match="peer: rank 2 is out of range"), wrong:
        comm.send(buffer, 2)
    assert len(wrong) == 0
    assert (buffer == 1).all()
    comm.all_reduce(buffer)
    assert (buffer == rank.nranks).all()


@on_ranks(2)
def test_wrong_uses(rank: Rank) -> None:
    comm, buffer = rank.comm, np.ones(4)
    plan = nccl.plan()
    with nccl.group(), pytest.raises(RuntimeError, match="inside a group, a plan or a simulation"):
        plan.__enter__()
    with nccl.plan(), pytest.raises(RuntimeError, match="inside a group, a plan or a simulation"):
        plan.__enter__()
    with (
        plan,
        pytest.raises(RuntimeError, match="a communicator cannot be created or changed inside"),
    ):
        comm.split(0)
    with nccl.plan(), pytest.raises(RuntimeError, match="not entered"):
        nccl.group().__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="not entered"):
        nccl.plan().__exit__(None, None, None)
    with nccl.plan() as alone:
        comm.send(buffer, rank.rank)
    # Errors that only the library detects are raised by each call.
    for _ in range(2):
        with pytest.raises(nccl.NcclInvalidUsageError, match="itself"):
            alone()
    comm.all_reduce(buffer)
    assert (buffer == rank.nranks).all()


@on_ranks(1)
def test_it_keeps_its_objects(rank: Rank) -> None:
    comm = rank.comm

    class Array(np.ndarray):
        pass

    buffer = np.ones(3).view(Array)
    gone = weakref.ref(buffer)
    with nccl.plan() as plan:
        comm.all_reduce(buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    plan()
    plan.close()
    plan.close()
    assert gone() is None
    assert repr(plan).startswith("<pynccl.nccl.Plan not ready: it is closed")
    with pytest.raises(ValueError, match="plan: it is closed"):
        plan()
    with nccl.plan() as nothing:
        pass
    nothing()
    assert len(nothing) == 0


@on_ranks(2)
def test_closed_while_it_is_called(rank: Rank) -> None:
    """The call releases the GIL, and another thread's close() does not free its memory."""
    comm, buffer = rank.comm, np.ones(1000)
    with nccl.plan() as plan:
        comm.all_reduce(buffer)
    if rank.rank == 0:
        closer = when_blocked(lambda: (plan.close(), rank.set_event("closed")))
        plan()  # waits for the other rank
        closer.join()
        assert repr(plan).startswith("<pynccl.nccl.Plan not ready: it is closed")
    else:
        rank.wait_event("closed", 0)
        plan()
    assert (buffer == rank.nranks).all()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_recording_ends_with_its_plan(comm: nccl.Communicator, elsewhere: bool) -> None:
    """Without an exit, the thread would record later operations instead of issuing them."""
    plans = [nccl.plan()]
    plans[0].__enter__()
    comm.all_reduce(np.ones(1))
    nccl.group().__enter__()
    comm.all_reduce(np.ones(1))
    if elsewhere:
        deleting = threading.Thread(target=plans.clear)
        deleting.start()
        deleting.join()
    plans.clear()
    comm.all_reduce(np.ones(1))
    assert len(comm.flight_record()) == 1
    with nccl.plan() as other:
        comm.all_reduce(np.ones(1))
    assert len(other) == 1
