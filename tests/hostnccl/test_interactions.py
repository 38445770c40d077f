"""Proves that the features of hostnccl work together: windows and one-sided operations, graphs,
suspension, splitting, shrinking and growing, delays, revoking and aborting. Each pair of them
either works or is rejected with a reason; nothing hangs, and nothing leaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from pynccl.errors import DriverError
from tests.support import holdings
from tests.support.blocking import PAGE, Area, Blocked, synchronize
from tests.support.launcher import Launcher
from tests.support.rank import Rank


def _check_sum(comm: nccl.Communicator) -> None:
    x = np.full(1000, comm.rank + 1, np.int32)
    comm.all_reduce(x)
    assert (x == comm.nranks * (comm.nranks + 1) // 2).all()


def _check_put(rank: Rank, comm: nccl.Communicator, area: Area, value: int) -> None:
    peer = (comm.rank + 1) % comm.nranks
    area.outgoing[:] = value
    synchronize(rank)
    area.put(comm, peer)
    comm.wait_signal((comm.rank - 1) % comm.nranks)
    assert (area.incoming == value).all()


def _check_refused(graph: nccl.Graph, stream: nccl.Stream, reason: str) -> None:
    with pytest.raises(
        nccl.NcclInvalidUsageError, match=f"^the launch of a graph failed.*{reason}"
    ):
        graph.launch(stream)


def _graph_of_one_sided(rank: Rank, comm: nccl.Communicator) -> None:
    """Puts, waits and a collective with a selected path are captured together and replayed."""
    area, stream, peer = Area(comm), rank.stream(), 1 - rank.rank
    event = rank.event()
    total = np.zeros(300, np.float32)
    staged = nccl.CollConfig(algorithm="staged", profiler_tag=7, launch_event=event)
    with nccl.capture(stream) as graph:
        area.put(comm, peer)
        comm.wait_signal(peer)
        comm.all_reduce(total, config=staged)
        with nccl.group():
            comm.signal(peer)
            comm.wait_signal(peer)
            comm.all_reduce(total, nccl.MAX)
    for turn in range(3):
        area.outgoing[:] = 10 * turn + rank.rank
        total[:] = turn + rank.rank
        graph.launch(stream)
        stream.synchronize()
        assert (area.incoming == 10 * turn + peer).all()
        assert (total == 2 * turn + 1).all()
        synchronize(rank)
    _check_put(rank, comm, area, 77)
    graph.close()


def _registration_in_a_capture(rank: Rank, comm: nccl.Communicator) -> None:
    """It is not an operation of the stream, and takes effect immediately."""
    stream, peer = rank.stream(), 1 - rank.rank
    with nccl.capture(stream) as graph:
        area = Area(comm)
        area.put(comm, peer)
        comm.wait_signal(peer, stream=stream)
    area.outgoing[:] = 5
    synchronize(rank)
    graph.launch(stream)
    stream.synchronize()
    assert (area.incoming == 5).all()
    graph.close()


def _graph_without_its_window(rank: Rank, comm: nccl.Communicator) -> None:
    area, stream = Area(comm), rank.stream()
    with nccl.capture(stream) as graph:
        area.put(comm, 1 - rank.rank)
    area.window.close()
    with pytest.raises(DriverError, match=r"ILLEGAL_STATE .*window that was deregistered"):
        graph.launch(stream)
    _check_sum(comm)
    graph.close()


def _suspended_graph_and_window(rank: Rank, comm: nccl.Communicator) -> None:
    area, stream, peer = Area(comm), rank.stream(), 1 - rank.rank
    total = np.ones(100, np.float32)
    with nccl.capture(stream) as graph:
        area.put(comm, peer)
        comm.wait_signal(peer, stream=stream)
        comm.all_reduce(total)
    comm.signal(peer)  # stays on its way
    for turn in range(2):
        comm.suspend()
        _check_refused(graph, stream, "suspended")
        with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
            comm.wait_signal(peer)
        with pytest.raises(nccl.NcclInvalidUsageError, match="suspended"):
            comm.register_window(area.buffer)
        comm.resume()
        area.outgoing[:], total[:] = turn, turn
        synchronize(rank)
        graph.launch(stream)
        stream.synchronize()
        assert (area.incoming == turn).all()
        assert (total == 2 * turn).all()
    comm.wait_signal(peer)
    with nccl.capture(stream) as both:
        comm.all_reduce(total)
        comm.suspend()  # not an operation of the stream either
    comm.resume()
    both.launch(stream)
    stream.synchronize()
    assert (total == 4).all()
    comm.suspend()
    area.window.close()
    comm.resume()
    graph.close()
    both.close()


def _children_have_no_windows(rank: Rank, comm: nccl.Communicator) -> None:
    area, peer = Area(comm), 1 - rank.rank
    comm.signal(peer)
    child = comm.split(0, -rank.rank)
    assert child is not None
    with pytest.raises((nccl.NcclError, ValueError), match="communicator"):
        child.put_signal(area.outgoing, 0, area.window, area.half)
    with pytest.raises(nccl.NcclInvalidUsageError, match="before a symmetric window was"):
        child.wait_signal(0)
    own = child.register_window(area.buffer)  # the same memory twice
    area.outgoing[:] = 3 + rank.rank
    synchronize(rank)
    child.put_signal(area.outgoing, 1 - child.rank, own, area.half)
    child.wait_signal(1 - child.rank)
    assert (area.incoming == 3 + peer).all()
    comm.wait_signal(peer)
    child.close()
    _check_put(rank, comm, area, 9)
    if rank.rank == 0:
        with comm.shrink([1]) as alone:
            _check_put_to_self(alone)
    _check_put(rank, comm, area, 10)


def _check_put_to_self(comm: nccl.Communicator) -> None:
    area = Area(comm)
    area.outgoing[:] = 8
    area.put(comm, 0)
    comm.wait_signal(0)
    assert (area.incoming == 8).all()


def _revoked_while_waiting(rank: Rank, comm: nccl.Communicator) -> None:
    area, stream, peer = Area(comm), rank.stream(), 1 - rank.rank
    with nccl.capture(stream) as graph:
        comm.wait_signal(peer, stream=stream)
        area.put(comm, peer)
    graph.launch(stream)
    waiting = Blocked(lambda: comm.wait_signal(peer))
    synchronize(rank)
    waiting.wait()
    comm.revoke()
    waiting.end("revoked")
    # The other rank may have revoked first.
    with pytest.raises((nccl.NcclInvalidUsageError, nccl.NcclRemoteError), match="revoked"):
        stream.synchronize()
    _check_refused(graph, stream, "revoked")
    for refused in (
        lambda: comm.register_window(comm.mem_alloc(4096)),
        lambda: area.put(comm, peer),
        comm.suspend,
    ):
        with pytest.raises(nccl.NcclError, match="revoked"):
            refused()
    child = comm.split(0)
    assert child is not None
    _check_put(rank, child, Area(child), 6)
    child.close()
    graph.close()


def _shrunk_with_abort_while_waiting(rank: Rank, comm: nccl.Communicator) -> None:
    Area(comm)
    waiting = Blocked(lambda: comm.wait_signal(1 - rank.rank))
    synchronize(rank)
    if rank.rank == 0:
        with comm.shrink([1], abort=True) as alone:
            _check_put_to_self(alone)
        waiting.end("ncclCommShrink")
    else:
        waiting.end("rank 0")
    comm.abort()


def _collective_calls(area: Area) -> list[Callable[[nccl.Communicator], object]]:
    """Calls that wait for the other rank, other than operations."""
    return [
        lambda child: child.register_window(area.buffer),
        lambda child: child.suspend(),
        lambda child: child.split(0),
        lambda child: child.grow(3),
    ]


def _aborted_calls(rank: Rank, comm: nccl.Communicator) -> None:
    """One rank makes a collective call alone, and its own abort ends it."""
    area = Area(comm)
    calls = _collective_calls(area)
    children = [comm.split(0) for _ in calls]
    if rank.rank == 0:
        blocked = [
            Blocked(lambda call=call, child=child: call(child))  # type: ignore[misc]
            for call, child in zip(calls, children, strict=True)
        ]
        for one in blocked:
            one.wait()
        for one, child in zip(blocked, children, strict=True):
            assert child is not None
            child.abort()
            one.end("abort")
    synchronize(rank)
    for call, child in zip(calls, children, strict=True):
        assert child is not None
        if rank.rank == 1:
            with pytest.raises(nccl.NcclError, match="rank 0"):
                call(child)
            child.abort()
    _check_put(rank, comm, area, 1)


def _aborted_in_the_background(rank: Rank, comm: nccl.Communicator) -> None:
    """A registration in progress on a non-blocking communicator ends with it."""
    buffer = comm.mem_alloc(PAGE)
    for alone in (True, False):
        child = comm.split(0, config=nccl.Config(blocking=False))
        assert child is not None
        child.wait_ready()
        synchronize(rank)
        library, address = child.library, np.from_dlpack(buffer).ctypes.data
        if rank.rank == 0 or not alone:
            with contextlib.suppress(nccl.NcclRemoteError):  # the other one is faster
                library.ncclCommWindowRegister(child.handle, address, PAGE, 0)
        child.abort()
        synchronize(rank)


def _different_calls(rank: Rank, comm: nccl.Communicator) -> None:
    area = Area(comm)
    x = np.ones(4, np.float32)
    calls = [*_collective_calls(area), lambda child: child.all_reduce(x)]
    for number, mine in enumerate(calls):
        child = comm.split(0)
        assert child is not None
        call = mine if rank.rank == 0 else calls[number - 1]
        with pytest.raises((nccl.NcclInvalidUsageError, nccl.NcclRemoteError), match="differe"):
            call(child)
        child.abort()
        synchronize(rank)
    _check_put(rank, comm, area, 2)


def _mixed_group(rank: Rank, comm: nccl.Communicator) -> None:
    """Operations of all kinds over three communicators, in one thread and on streams."""
    second, third = comm.split(0), comm.split(0, -rank.rank)
    assert second is not None
    assert third is not None
    areas = {each: Area(each) for each in (comm, third)}
    sums = [np.zeros(10_000, np.float32) for _ in range(3)]
    sent, received = (np.zeros(50_000, np.float32) for _ in range(2))
    one, other = rank.stream(), rank.stream()
    for turn, streams in enumerate([(None,) * 3, (one,) * 3, (one, other, None), (None, one, one)]):
        for area in areas.values():
            area.outgoing[:] = 100 * turn + rank.rank
        for x in (*sums, sent):
            x[:] = turn
        synchronize(rank)
        with nccl.group():
            for each, stream, x in zip((comm, second, third), streams, sums, strict=True):
                peer = 1 - each.rank
                if each in areas:
                    each.wait_signal(peer, stream=stream)
                each.all_reduce(x, stream=stream)
                if each in areas:
                    area = areas[each]
                    each.put_signal(area.outgoing, peer, area.window, area.half, stream=stream)
                if each is second:
                    each.recv(received, peer, stream=stream)
                    each.send(sent, peer, stream=stream)
        one.synchronize()
        other.synchronize()
        for area in areas.values():
            assert (area.incoming == 100 * turn + 1 - rank.rank).all()
        assert (received == turn).all()
        assert all((x == 2 * turn).all() for x in sums)
    for each in (second, third):
        each.close()


_CASES = (
    _graph_of_one_sided,
    _registration_in_a_capture,
    _graph_without_its_window,
    _suspended_graph_and_window,
    _children_have_no_windows,
    _revoked_while_waiting,
    _shrunk_with_abort_while_waiting,
    _aborted_calls,
    _aborted_in_the_background,
    _different_calls,
    _mixed_group,
)


def _run_all(rank: Rank) -> None:
    synchronize(rank)
    for number in (0, 1):  # the first round creates persistent objects
        if number == 1:
            synchronize(rank)
            before = holdings.count()
            synchronize(rank)
        for case_number, case in enumerate(_CASES):
            comm = rank.communicator(1 + number * len(_CASES) + case_number)
            try:
                case(rank, comm)
            except BaseException as error:
                error.add_note(f"in {case.__name__}")
                raise
            if not comm.closed:
                comm.close()
            synchronize(rank)
    holdings.check(before)
    synchronize(rank)


@pytest.mark.parametrize(
    ("threads", "env"),
    [
        (False, {}),
        (True, {}),
        (False, {"HOSTNCCL_CMA": "0", "HOSTNCCL_DELAY_SEED": "7"}),
    ],
    ids=["processes", "threads", "staged and delayed"],
)
def test_pairs(launch: Launcher, threads: bool, env: dict[str, str]) -> None:
    ids = 1 + 2 * len(_CASES)
    launch(2, _run_all, threads=threads, env=env, ids=ids, fresh=True, timeout=40)
