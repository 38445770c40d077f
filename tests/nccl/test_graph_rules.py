"""Proves that breaking a rule of capturing is an error with CUDA's name, never a crash; which
objects a graph keeps alive; and its behaviour if a communicator that it uses is closed, destroyed
or fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_graphs import COUNT
from tests.support.blocking import in_threads
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def test_a_graph_prints_its_state() -> None:
    stream = nccl.Stream("host")
    graph, texts = nccl.capture(stream), []
    texts.append(repr(graph))
    with graph:
        texts.append(repr(graph))
        stream.launch(lambda: None)
    texts.append(repr(graph))
    graph.close()
    texts.append(repr(graph))
    failed = nccl.capture(stream)
    with contextlib.suppress(nccl.DriverError), failed:
        stream.synchronize()
    texts.append(repr(failed))
    states = (
        "not ready: nothing was captured",
        "not ready: it is being captured",
        "of 1 node",
        "not ready: it is closed",
        "not ready: an error ended its capture",
    )
    for text, state in zip(texts, states, strict=True):
        assert text.startswith(f"<pynccl.nccl.Graph {state}")


@on_ranks(1)
def test_rules_of_capturing(rank: Rank) -> None:  # noqa: PLR0915
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

    # A capture is ended by the thread that began it, on the same stream.
    graph = nccl.capture(stream)
    graph.__enter__()
    with pytest.raises(RuntimeError, match="another thread"):
        in_threads(lambda: graph.__exit__(None, None, None))
    with pytest.raises(ValueError, match="being captured"):
        graph.launch()
    with pytest.raises(ValueError, match="being captured"):
        graph.close()
    graph.__exit__(None, None, None)
    with pytest.raises(ValueError, match="already captured"), graph:
        pass
    graph.launch()  # an empty graph
    assert len(graph) == 0

    # An exception in the block drops the graph. Stream and communicator stay usable.
    with contextlib.suppress(KeyError), nccl.capture(stream) as graph:
        comm.all_reduce(array)
        raise KeyError
    with pytest.raises(ValueError, match="an error ended its capture"):
        graph.launch()
    with pytest.raises(ValueError, match="nothing was captured"):
        nccl.capture(stream).launch()
    with pytest.raises(ValueError, match="mode: expected"):
        nccl.capture(stream, mode="local")
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


@on_ranks(2)
def test_a_group_is_captured_as_a_whole(rank: Rank) -> None:
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


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@on_ranks(1, by="provider")
def test_other_threads_during_a_capture(rank: Rank, mode: Any) -> None:  # noqa: ANN401
    """They may query and wait for other streams in every mode."""
    stream, other, event = rank.stream(), rank.stream(), rank.event()
    event.record(other)
    array = rank.memory.put(np.ones(COUNT))
    rank.comm.all_reduce(array, stream=other)
    with nccl.capture(stream, mode=mode) as graph:
        rank.comm.all_reduce(array)
        for call in (event.query, other.query, other.synchronize, event.synchronize):
            in_threads(call)
        assert event.query()
    graph.launch()
    stream.synchronize()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
@on_ranks(1, by="provider")
def test_graphs_freed_during_a_capture(rank: Rank, mode: Any) -> None:  # noqa: ANN401
    """A graph may be closed or deleted during a capture, on any thread."""
    stream, array, objects = rank.stream(), rank.memory.put(np.ones(COUNT)), []
    rank.comm.all_reduce(array)

    def captured(*frees: nccl.Graph) -> nccl.Graph:
        with nccl.capture(stream, mode=mode) as graph:
            for one in frees[1:]:
                one.close()
            in_threads(*(one.close for one in frees[:1]))
            stream.launch(Function())
            rank.comm.all_reduce(array)
        return graph

    class Function:
        def __init__(self) -> None:
            objects.append(weakref.ref(self))

        def __call__(self) -> None:
            pass

    for _ in range(3):
        graph = captured(captured(), captured())
        graph.launch()
        stream.synchronize()
    for _ in range(3):
        with nccl.capture(stream, mode=mode) as graph:  # deletes the previous graph
            rank.comm.all_reduce(array)
        graph.launch()
        stream.synchronize()
    gc.collect()
    assert all(one() is None for one in objects)


@on_ranks(2, by="provider", ids=2)
def test_a_communicator_closed_before_its_graph(rank: Rank) -> None:
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
        with pytest.raises(ValueError, match="a capture in progress uses it"):
            kept.close()
    both.launch()
    stream.synchronize()
    comm.close()
    with pytest.raises(ValueError, match=f"communicator of rank {rank.rank} was closed"):
        both.launch()
    assert f"not ready: the communicator of rank {rank.rank} was closed" in repr(both)
    memory.set(array, 1)
    alone.launch()
    during.launch()
    stream.synchronize()
    assert (memory.get(array) == float(rank.nranks) ** 2).all()
    kept.abort()
    with pytest.raises(ValueError, match="was closed"):
        alone.launch()


@on_ranks(2)
def test_hostnccl_refuses_a_destroyed_communicator(rank: Rank) -> None:
    """For callers that do not use the objects."""
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


def test_hostnccl_refuses_captures_that_end_elsewhere() -> None:
    """For callers of the driver's functions. The objects detect it before."""
    from pynccl import libraries

    library = ctypes.CDLL(libraries.load("host").path)
    streams = [nccl.Stream("host") for _ in range(3)]
    first, second, third = (ctypes.c_void_p(stream.handle) for stream in streams)
    event, graph = nccl.Event("host"), ctypes.c_void_p()
    relaxed, unsupported, invalidated, merge, unmatched = 2, 900, 901, 902, 903

    def call(name: str, *arguments: object) -> int:
        result: int = getattr(library, "host" + name)(*arguments)
        return result

    def begin(*captured: ctypes.c_void_p) -> None:
        assert [call("StreamBeginCapture", one, relaxed) for one in captured] == [0] * len(captured)

    def record(stream: ctypes.c_void_p) -> None:
        assert call("EventRecord", ctypes.c_void_p(event.handle), stream) == 0

    def wait(stream: ctypes.c_void_p) -> int:
        return call("StreamWaitEvent", stream, ctypes.c_void_p(event.handle), 0)

    def end(stream: ctypes.c_void_p) -> int:
        return call("StreamEndCapture", stream, ctypes.byref(graph))

    begin(first)
    record(first)
    assert wait(second) == 0
    assert (end(second), end(first)) == (unmatched, invalidated)
    begin(first)
    record(first)
    assert (wait(ctypes.c_void_p()), end(first)) == (unsupported, invalidated)
    begin(first, second)
    record(first)
    assert (wait(second), end(first), end(second)) == (merge, invalidated, invalidated)
    begin(first, second)
    x, y = (np.ones(4, np.float32) for _ in range(2))
    with nccl.Communicator.init_all(1, provider="host")[0] as comm:
        lib, handle = comm.library, comm.handle
        lib.ncclGroupStart()
        for array, stream in ((x, first), (y, second)):
            data = array.ctypes.data
            lib.ncclAllReduce(data, data, 4, 7, 0, handle, stream.value)
        with pytest.raises(nccl.NcclError):
            lib.ncclGroupEnd()
        assert (end(first), end(second)) == (invalidated, invalidated)
    begin(third)
    streams[2].close()  # ends its capture
    begin(first)
    assert end(first) == 0
    assert call("GraphDestroy", graph) == 0


@pytest.mark.parametrize("grouped", [False, True])
@on_ranks(2, ids=2)
def test_a_graph_keeps_its_objects(rank: Rank, grouped: bool) -> None:
    """Objects without references in Python live as long as the graph may be launched."""

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
            with nccl.group() if grouped else contextlib.nullcontext():
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


@on_ranks(2)
def test_a_graph_keeps_the_objects_of_one_sided_operations(rank: Rank) -> None:
    """For operations without a tensor, stream=None is the captured stream."""

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


@on_ranks(2)
def test_a_failure_in_a_launch(rank: Rank) -> None:
    """A collective that fails in a launch is reported like other failures in the background."""
    stream, array = rank.stream(), np.zeros(8)
    with nccl.capture(stream) as graph:
        rank.comm.all_reduce(array[: 3 + rank.rank])
    graph.launch()
    with pytest.raises(nccl.NcclInvalidUsageError, match=r"^work queued on the stream failed"):
        stream.synchronize()
    assert isinstance(rank.comm.async_error(), nccl.NcclInvalidUsageError)
    with pytest.raises(nccl.NcclInvalidUsageError, match=r"^the launch of a graph failed"):
        graph.launch()
    rank.comm.abort()
