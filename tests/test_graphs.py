"""Proves that what is captured on a stream runs when its graph is launched and not before: every
collective, groups, plans, messages, functions, across streams; that a graph runs again with new
inputs, on any stream, in its place among the operations of its communicators; and that breaking a
rule of capturing is an error with CUDA's name, never a crash.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from launcher import Launcher
from worker import Rank

from pynccl import nccl

COUNT = 1009


def _contribution(rank: int, replay: int) -> np.ndarray:
    """Whole numbers, so that every sum is exact in any order."""
    return np.arange(COUNT, dtype=np.float32) % 97 + 10 * rank + replay


class Programs:
    """Every collective on static buffers: what to capture, where its result is, what it must be."""

    def __init__(self, rank: Rank, comm: nccl.Communicator) -> None:
        self.rank, self.comm = rank, comm
        nranks, root = rank.nranks, rank.nranks - 1
        self.one, self.result = (rank.memory.put(np.zeros(COUNT, np.float32)) for _ in range(2))
        self.blocks, self.results = (
            rank.memory.put(np.zeros(COUNT * nranks, np.float32)) for _ in range(2)
        )
        one, result, blocks, results = self.one, self.result, self.blocks, self.results
        at_root = rank.rank == root

        def ring() -> None:
            with nccl.group():
                comm.send(one, (rank.rank + 1) % nranks)
                comm.recv(result, (rank.rank - 1) % nranks)

        Expected = Callable[[list[np.ndarray]], Any]  # noqa: N806 - a type
        self.table: dict[str, tuple[Callable[[], object], Any, Expected]] = {
            "all_reduce": (lambda: comm.all_reduce(one, out=result), result, sum),
            "broadcast": (lambda: comm.broadcast(one, root, out=result), result, lambda a: a[root]),
            "reduce": (
                lambda: comm.reduce(one, root, nccl.MAX, out=result if at_root else None),
                result,
                lambda a: np.max(a, axis=0) if at_root else None,
            ),
            "all_gather": (lambda: comm.all_gather(one, out=results), results, np.concatenate),
            "reduce_scatter": (lambda: comm.reduce_scatter(blocks, out=result), result, sum),
            "all_to_all": (lambda: comm.all_to_all(blocks, out=results), results, np.concatenate),
            "gather": (
                lambda: comm.gather(one, root, out=results if at_root else None),
                results,
                lambda a: np.concatenate(a) if at_root else None,
            ),
            "scatter": (
                lambda: comm.scatter(blocks if at_root else result, root, out=result),
                result,
                lambda a: a[root],
            ),
            "ring": (ring, result, lambda a: a[rank.rank - 1]),
        }

    def fill(self, replay: int) -> None:
        memory, mine = self.rank.memory, _contribution(self.rank.rank, replay)
        memory.set(self.one, mine)
        memory.set(self.blocks, np.tile(mine, self.rank.nranks))
        memory.set(self.result, 0)
        memory.set(self.results, 0)

    def check(self, name: str, replay: int) -> None:
        _, buffer, expected = self.table[name]
        wanted = expected([_contribution(r, replay) for r in range(self.rank.nranks)])
        if wanted is not None:
            np.testing.assert_array_equal(self.rank.memory.get(buffer), wanted, name)


def _every_collective(rank: Rank) -> None:
    stream, programs = rank.stream(), Programs(rank, rank.comm)
    for name, (program, buffer, _) in programs.table.items():
        programs.fill(0)
        with nccl.capture(stream) as graph:
            program()
        assert len(graph) >= 1, name
        assert not rank.memory.get(buffer).any(), f"{name} ran while it was captured"
        for replay in range(3):
            programs.fill(replay)
            graph.launch()
            stream.synchronize()
            programs.check(name, replay)
        graph.close()


@pytest.mark.parametrize("nranks", [1, 2, 3])
def test_every_collective_is_captured(launch: Launcher, provider: str, nranks: int) -> None:
    launch(nranks, _every_collective, provider=provider)


def test_ranks_as_threads_capture_at_once(launch: Launcher, provider: str) -> None:
    launch(2, _every_collective, provider=provider, threads=True)


def _forms(rank: Rank) -> None:
    """A plan, a group over two communicators with an operator of their own, and single calls."""
    comms = [rank.communicator(0), rank.communicator(1)]
    stream, memory = rank.stream(), rank.memory
    x, y, z = (memory.put(np.zeros(COUNT)) for _ in range(3))
    double = comms[0].pre_mul_sum(2.0, "float64")
    with nccl.plan() as plan:
        comms[0].all_reduce(x, out=y, stream=stream)
        comms[1].all_reduce(x, nccl.MAX, out=z, stream=stream)
    with nccl.capture(stream) as graph:
        plan()
        with nccl.group():
            comms[0].all_reduce(y, double)
            comms[1].all_reduce(z)
        comms[1].broadcast(x, 0)
    plan.close()
    for replay in range(1, 4):
        memory.set(x, replay + rank.rank)
        graph.launch()
        stream.synchronize()
        n = rank.nranks
        total = sum(replay + r for r in range(n))
        assert (memory.get(x) == replay).all()
        assert (memory.get(y) == 2 * n * total).all()
        assert (memory.get(z) == n * (replay + n - 1)).all()
    graph.close()
    for comm in comms:
        comm.close()


def test_plans_groups_and_several_communicators(launch: Launcher, provider: str) -> None:
    launch(2, _forms, provider=provider, ids=2)


def _functions(rank: Rank) -> None:
    """Functions run once in each launch, in their place; the graph keeps them."""
    stream, other = rank.stream(), rank.stream()
    forked, joined = rank.event(), rank.event()
    seen: list[str] = []

    class Function:
        def __call__(self) -> None:
            seen.append("first")

    function = Function()
    alive = weakref.ref(function)
    x = rank.memory.put(np.ones(COUNT, np.float32))
    y = rank.memory.put(np.zeros(COUNT, np.float32))
    with nccl.capture(stream) as graph:
        stream.launch(function)
        rank.comm.all_reduce(x, out=y)
        forked.record(stream)
        other.wait(forked)
        other.launch(lambda: seen.append("fork"))
        rank.comm.all_reduce(y, stream=other)
        joined.record(other)
        stream.wait(joined)
        stream.launch(lambda: seen.append("last"))
    del function
    gc.collect()
    assert alive() is not None
    assert seen == []
    other.launch(lambda: seen.append("not captured"))  # the fork has ended with the capture
    other.synchronize()
    for _ in range(3):
        graph.launch(stream)
    graph.launch(other)
    for each in (stream, other):
        each.synchronize()
    assert seen == ["not captured", *["first", "fork", "last"] * 4]
    assert (rank.memory.get(y) == rank.nranks**2).all()
    graph.close()
    gc.collect()
    assert alive() is None


def test_functions_and_forks(launch: Launcher, provider: str) -> None:
    launch(2, _functions, provider=provider)


def _branches(rank: Rank) -> None:
    """Two branches run at the same time: each waits for the other's first half."""
    stream, other = rank.stream(), rank.stream()
    forked, joined = rank.event(), rank.event()
    here, there = threading.Event(), threading.Event()
    met: list[bool] = []
    with nccl.capture(stream) as graph:
        forked.record(stream)
        other.wait(forked)
        other.launch(lambda: (there.set(), met.append(here.wait(20))))
        stream.launch(lambda: (here.set(), met.append(there.wait(20))))
        joined.record(other)
        stream.wait(joined)
    for _ in range(3):
        here.clear()
        there.clear()
        graph.launch()
        stream.synchronize()
    assert met == [True] * 6


def test_branches_run_side_by_side(launch: Launcher) -> None:
    launch(1, _branches)


def _order(rank: Rank) -> None:
    """Launches, operations on streams and operations outside of streams, of one communicator."""
    comm, memory = rank.comm, rank.memory
    streams = [rank.stream() for _ in range(3)]
    events = [rank.event() for _ in range(3)]
    a = memory.put(np.full(COUNT, 1.0))
    with nccl.capture(streams[0]) as first:
        comm.all_reduce(a)
        comm.all_reduce(a, nccl.AVG)
    with nccl.capture(streams[1]) as second:
        comm.all_reduce(a)
    power = 0
    for number in range(40):
        at = number % 3
        (first, second)[number % 2].launch(streams[at])
        comm.all_reduce(a, nccl.AVG, stream=streams[at])
        power += 1
        # Values go from stream to stream; that operations keep their order is the engine's part.
        events[at].record(streams[at])
        streams[(at + 1) % 3].wait(events[at])
    for stream in streams:
        stream.synchronize()
    assert (memory.get(a) == float(rank.nranks) ** power).all()


def test_launches_keep_the_order_of_their_communicator(launch: Launcher, provider: str) -> None:
    launch(2, _order, provider=provider)


def _calling_thread(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    array, seen = np.ones(COUNT), []
    with nccl.capture(stream) as graph:
        stream.launch(lambda: seen.append(threading.get_ident()))
        comm.all_reduce(array)
    for default in (0, 1, 2):
        graph.launch(default)
        assert seen.pop() == threading.get_ident()
    comm.all_reduce(array)
    assert (array == float(rank.nranks) ** 4).all()
    with pytest.raises(nccl.DriverError, match="CAPTURE_UNSUPPORTED"), nccl.capture(0, "host"):
        pass


def test_the_calling_thread_launches_and_is_not_captured(launch: Launcher) -> None:
    launch(2, _calling_thread)


def _several_threads(rank: Rank) -> None:
    """Each thread with its graphs, communicator and stream; captures and launches overlap."""

    def work(number: int) -> None:
        try:
            comm, stream, memory = comms[number], rank.stream(), rank.memory
            x, y = (memory.put(np.zeros(COUNT)) for _ in range(2))
            for replay in range(1, 15):
                with nccl.capture(stream) as graph:
                    comm.all_reduce(x, out=y)
                    comm.all_reduce(y)
                memory.set(x, replay * (number + 1))
                for _ in range(3):
                    graph.launch()
                stream.synchronize()
                wanted = replay * (number + 1) * rank.nranks**2
                assert (memory.get(y) == wanted).all()
        except BaseException as error:
            errors.append(error)

    errors: list[BaseException] = []
    comms = [rank.communicator(i) for i in range(3)]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for comm in comms:
        comm.abort() if errors else comm.close()
    assert not errors, errors


def test_threads_capture_and_launch_beside_each_other(launch: Launcher) -> None:
    launch(2, _several_threads, ids=3)


def _rules(rank: Rank) -> None:  # noqa: PLR0915
    stream, other, third = (rank.stream() for _ in range(3))
    event, array = rank.event(), np.ones(4)
    comm = rank.comm

    def refused(name: str, body: Callable[[], object], after: str = "") -> None:
        """A mistake ends the capture; the stream is free again, and the graph cannot be used."""
        graph = nccl.capture(stream)
        with pytest.raises(nccl.DriverError, match=f"CUDA_ERROR_{name}") as caught, graph:
            body()
        assert caught.value.function
        with pytest.raises(ValueError, match="an error ended its capture"):
            graph.launch()
        stream.synchronize()

    def unjoined() -> None:
        event.record(stream)
        other.wait(event)
        other.launch(lambda: None)

    def invalidated() -> None:
        with pytest.raises(nccl.DriverError, match="CAPTURE_UNSUPPORTED"):
            stream.synchronize()
        stream.launch(lambda: None)

    def of_a_collective() -> None:
        with pytest.raises(nccl.DriverError, match="CAPTURE_UNSUPPORTED"):
            stream.query()
        with pytest.raises(nccl.NcclUnhandledCudaError, match="CAPTURE_INVALIDATED"):
            comm.all_reduce(array, stream=stream)

    def two_captures() -> None:
        with nccl.capture(third):
            event.record(third)
            stream.wait(event)

    def captured_event(ask: Callable[[], object]) -> Callable[[], object]:
        return lambda: (event.record(stream), ask())

    outside = rank.event()
    outside.record(other)
    refused("STREAM_CAPTURE_UNJOINED", unjoined)
    refused("STREAM_CAPTURE_INVALIDATED", invalidated)
    refused("STREAM_CAPTURE_INVALIDATED", of_a_collective)
    refused("STREAM_CAPTURE_UNSUPPORTED", stream.synchronize)
    refused("STREAM_CAPTURE_UNSUPPORTED", stream.query)
    refused("STREAM_CAPTURE_UNSUPPORTED", lambda: nccl.capture(stream).__enter__())
    refused("STREAM_CAPTURE_ISOLATION", lambda: stream.wait(outside))
    refused("STREAM_CAPTURE_MERGE", two_captures)
    refused("CAPTURED_EVENT", captured_event(event.query))
    refused("CAPTURED_EVENT", captured_event(event.synchronize))

    # A capture is ended by the thread and with the stream that it began with.
    graph = nccl.capture(stream)
    graph.__enter__()
    caught: list[BaseException] = []

    def end() -> None:
        try:
            graph.__exit__(None, None, None)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])
    with pytest.raises(ValueError, match="being captured"):
        graph.launch()
    with pytest.raises(ValueError, match="being captured"):
        graph.close()
    graph.__exit__(None, None, None)
    with pytest.raises(ValueError, match="captured before"), graph:
        pass
    graph.launch()  # of nothing
    assert len(graph) == 0

    # An exception in the block drops the graph; everything is usable after all that.
    with contextlib.suppress(KeyError), nccl.capture(stream) as graph:
        comm.all_reduce(array)
        raise KeyError
    with pytest.raises(ValueError, match="an error ended its capture"):
        graph.launch()
    with pytest.raises(ValueError, match="nothing was captured"):
        nccl.capture(stream).launch()
    with pytest.raises(ValueError, match="mode: expected"):
        nccl.capture(stream, mode="local")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stream: expected"):
        nccl.capture("stream", "host")
    with nccl.capture(stream) as graph:
        comm.all_reduce(array)
    with nccl.group(), pytest.raises(RuntimeError, match="inside a group"):
        graph.launch()
    graph.launch()
    stream.synchronize()
    assert (array == rank.nranks).all()
    graph.close()
    graph.close()
    with pytest.raises(ValueError, match="it is closed"):
        graph.launch()


def test_rules_of_capturing(launch: Launcher) -> None:
    launch(1, _rules)


def _mixed_group(rank: Rank) -> None:
    comm, stream, other, a, b = rank.comm, rank.stream(), rank.stream(), np.ones(4), np.ones(4)
    with nccl.capture(stream) as graph:
        with nccl.plan() as plan:
            comm.all_reduce(a, stream=stream)
            comm.all_reduce(b, stream=other)
        with pytest.raises(nccl.NcclInvalidUsageError, match="either all or none"):
            plan()
        comm.all_reduce(a, stream=stream)
    graph.launch()
    comm.all_reduce(b, stream=other)
    stream.synchronize()
    other.synchronize()
    assert (a == rank.nranks).all()
    assert (b == rank.nranks).all()


def test_a_group_is_captured_as_a_whole(launch: Launcher) -> None:
    launch(2, _mixed_group)


def _other_threads(rank: Rank, mode: Any) -> None:  # noqa: ANN401
    """Only a global capture forbids other threads to wait; asking never breaks any capture."""
    stream, other, event = rank.stream(), rank.stream(), rank.event()
    event.record(other)
    errors: list[BaseException | None] = []

    def elsewhere(body: Callable[[], object]) -> None:
        def run() -> None:
            try:
                body()
                errors.append(None)
            except nccl.DriverError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    array = rank.memory.put(np.ones(COUNT))
    rank.comm.all_reduce(array, stream=other)
    with nccl.capture(stream, mode=mode) as graph:
        rank.comm.all_reduce(array)
        elsewhere(event.query)
        elsewhere(other.query)
        assert event.query() in (True, False)
    assert errors == [None, None]
    graph.launch()
    stream.synchronize()
    if mode == "global":
        with (
            pytest.raises(nccl.DriverError, match="CAPTURE_INVALIDATED"),
            nccl.capture(stream, mode=mode),
        ):
            elsewhere(other.synchronize)
        assert "CAPTURE_UNSUPPORTED" in str(errors[-1])
    else:
        with nccl.capture(stream, mode=mode):
            elsewhere(other.synchronize)
        assert errors[-1] is None


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_other_threads_during_a_capture(launch: Launcher, provider: str, mode: str) -> None:
    launch(1, _other_threads, mode, provider=provider)


def _closed_communicator(rank: Rank) -> None:
    stream, memory = rank.stream(), rank.memory
    comm, kept = rank.communicator(0), rank.communicator(1)
    array = memory.put(np.ones(COUNT))
    with nccl.capture(stream) as both:
        comm.all_reduce(array)
        kept.all_reduce(array)
    with nccl.capture(stream) as alone:
        kept.all_reduce(array)
    with nccl.capture(stream) as during:
        kept.all_reduce(array)
        with pytest.raises(ValueError, match="a graph is capturing it"):
            kept.close()
    both.launch()
    stream.synchronize()
    comm.close()
    with pytest.raises(ValueError, match=f"communicator of rank {rank.rank} was closed"):
        both.launch()
    assert "broken" in repr(both)
    memory.set(array, 1)
    alone.launch()
    during.launch()
    stream.synchronize()
    assert (memory.get(array) == float(rank.nranks) ** 2).all()
    kept.abort()
    with pytest.raises(ValueError, match="was closed"):
        alone.launch()


def test_a_communicator_that_is_closed_before_its_graph(launch: Launcher, provider: str) -> None:
    launch(2, _closed_communicator, provider=provider, ids=2)


def _destroyed_below(rank: Rank) -> None:
    """The engine itself finds out, for those who use it without the objects."""
    from pynccl import libraries

    raw, stream, array = libraries.load("host"), rank.stream(), np.ones(4)
    unique_id = nccl.UniqueId(rank.unique_ids[0])
    comm = raw.ncclCommInitRank(rank.nranks, unique_id, rank.rank)
    with nccl.capture(stream) as graph:
        data = array.ctypes.data
        raw.ncclAllReduce(data, data, 4, 8, 0, comm, stream.handle)
    graph.launch()
    stream.synchronize()
    assert (array == rank.nranks).all()
    raw.ncclCommDestroy(comm)
    with pytest.raises(nccl.DriverError, match="CUDA_ERROR_ILLEGAL_STATE"):
        graph.launch()
    text = f"communicator of rank {rank.rank} of {rank.nranks}, which was destroyed"
    assert text in raw.ncclGetLastError(None)


def test_the_engine_refuses_a_destroyed_communicator(launch: Launcher) -> None:
    launch(2, _destroyed_below)


def _keeps(rank: Rank) -> None:
    """What Python forgets stays while the graph may be launched."""

    class Array(np.ndarray):
        pass

    result = np.zeros(COUNT)

    def make() -> tuple[nccl.Graph, weakref.ref]:
        stream, fork, event = rank.stream(), rank.stream(), rank.event()
        comm = rank.communicator(1)
        array = np.full(COUNT, 3.0).view(Array)
        with nccl.capture(stream) as graph:
            event.record(stream)
            fork.wait(event)
            comm.all_reduce(array, out=result, stream=fork)
            event.record(fork)
            stream.wait(event)
        return graph, weakref.ref(array)

    graph, array = make()
    gc.collect()
    assert array() is not None
    graph.launch()
    graph.launch(0)
    assert (result == 3 * rank.nranks).all()
    with pytest.warns(ResourceWarning, match="was not closed"):
        graph.close()
    gc.collect()
    assert array() is None


def test_a_graph_keeps_what_it_needs(launch: Launcher) -> None:
    launch(2, _keeps, ids=2)


def _keeps_one_sided(rank: Rank) -> None:
    """The same of one-sided operations; None is the captured stream for those without a tensor."""

    class Array(np.ndarray):
        pass

    comm, peer, half = rank.comm, 1 - rank.rank, 4096
    buffer = comm.mem_alloc(2 * half)
    data = np.from_dlpack(buffer)

    def make() -> tuple[nccl.Graph, list[weakref.ref]]:
        window, part = comm.register_window(buffer), data[:half].view(Array)
        with nccl.capture(rank.stream()) as graph:
            comm.put_signal(part, peer, window, half)
            comm.wait_signal(peer)
        return graph, [weakref.ref(part), weakref.ref(window)]

    graph, kept = make()
    gc.collect()
    assert all(one() is not None for one in kept)
    assert len(graph) == 2
    for replay in range(3):
        data[:half] = 10 * replay + rank.rank
        graph.launch(0)
        assert (data[half:] == 10 * replay + peer).all()
        comm.all_reduce(np.zeros(1))
    graph.close()
    gc.collect()
    assert all(one() is None for one in kept)


def test_a_graph_keeps_what_one_sided_operations_need(launch: Launcher) -> None:
    launch(2, _keeps_one_sided)


def _failure(rank: Rank) -> None:
    """A launch whose collective fails is told as any failure in the background is."""
    stream, array = rank.stream(), np.zeros(8)
    with nccl.capture(stream) as graph:
        rank.comm.all_reduce(array[: 3 + rank.rank])
    graph.launch()
    with pytest.raises(nccl.DriverError, match="CUDA_ERROR_UNKNOWN"):
        stream.synchronize()
    assert isinstance(rank.comm.async_error(), nccl.NcclInvalidUsageError)
    with pytest.raises(nccl.DriverError):
        graph.launch()
    rank.comm.abort()


def test_a_failure_in_a_launch(launch: Launcher) -> None:
    launch(2, _failure)


def _abort(rank: Rank) -> None:
    """A launch that waits for a rank that never comes ends with an abort."""
    stream, array = rank.stream(), np.zeros(8)
    with nccl.capture(stream) as graph:
        rank.comm.all_reduce(array)
    if rank.rank == 0:
        graph.launch()
        time.sleep(0.1)
        rank.comm.abort()
        with pytest.raises(nccl.DriverError):
            stream.synchronize()
        rank.tell("aborted")
    else:
        time.sleep(0.5)
        rank.comm.abort()
        rank.tell("aborted")


def test_an_abort_ends_a_launch(launch: Launcher) -> None:
    launch(2, _abort)
