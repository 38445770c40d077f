"""Proves that captured work runs when its graph is launched and not before: every collective,
groups, plans, messages and functions, across streams; and that a graph runs again with new inputs,
on any stream. On GPUs, torch.cuda.graph and CuPy capture them, too. Breaking a rule of capturing is
an error with CUDA's name, and the end or failure of a communicator one of its graph. test_delays.py
tests launches among other operations, test_async.py asynchronous work in captures.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pynccl import libraries, nccl
from tests.support.blocking import in_threads
from tests.support.memory import OnlyDlpack
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_COUNT = 1009
_REPLAYS = 3
_WITH_CUPY = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy")


def _contribution(rank: int, replay: int) -> np.ndarray:
    """Whole numbers, so that every sum is exact in any order."""
    return np.arange(_COUNT, dtype=np.float32) % 97 + 10 * rank + replay


class Programs:
    """Every collective on static buffers: the call, the buffer of its result, and the result."""

    def __init__(self, rank: Rank, comm: nccl.Communicator) -> None:
        self.rank, self.comm = rank, comm
        nranks, root = rank.nranks, rank.nranks - 1
        self.one, self.result = (rank.memory.put(np.zeros(_COUNT, np.float32)) for _ in range(2))
        self.blocks, self.results = (
            rank.memory.put(np.zeros(_COUNT * nranks, np.float32)) for _ in range(2)
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


@pytest.mark.parametrize(("nranks", "threads"), [(1, False), (2, False), (3, False), (2, True)])
@on_ranks(by="provider threads")
def test_every_collective_is_captured(rank: Rank) -> None:
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


@on_ranks(2, by="provider", ids=2)
def test_plans_groups_and_several_communicators(rank: Rank) -> None:
    """A plan, a group of two communicators with an own operator, and single calls."""
    comms = [rank.communicator(0), rank.communicator(1)]
    stream, memory = rank.stream(), rank.memory
    x, y, z, of_plan = (memory.put(np.zeros(_COUNT)) for _ in range(4))
    double = comms[0].pre_mul_sum(2.0, "float64")
    with nccl.plan() as plan:
        comms[0].all_reduce(x, out=y, stream=stream)
        comms[1].all_reduce(x, nccl.MAX, out=z, stream=stream)
        comms[0].all_reduce(of_plan, stream=stream)
    with nccl.capture(stream) as graph:
        plan()
        with nccl.group():
            comms[0].all_reduce(y, double)
            comms[1].all_reduce(z)
        comms[1].broadcast(x, 0)
    plan.close()
    alive = weakref.ref(of_plan)
    del of_plan
    for replay in range(1, 4):
        memory.set(x, replay + rank.rank)
        graph.launch()
        stream.synchronize()
        n = rank.nranks
        total = sum(replay + r for r in range(n))
        assert (memory.get(x) == replay).all()
        assert (memory.get(y) == 2 * n * total).all()
        assert (memory.get(z) == n * (replay + n - 1)).all()
    gc.collect()
    assert alive() is not None
    graph.close()
    for comm in comms:
        comm.close()


@on_ranks(2, by="provider")
def test_functions_and_forks(rank: Rank) -> None:
    """Functions run once per launch, in order. The graph keeps them."""
    stream, other = rank.stream(), rank.stream()
    forked, joined = rank.event(), rank.event()
    seen: list[str] = []

    class Function:
        def __call__(self) -> None:
            seen.append("first")

    function = Function()
    alive = weakref.ref(function)
    x = rank.memory.put(np.ones(_COUNT, np.float32))
    y = rank.memory.put(np.zeros(_COUNT, np.float32))
    comm = rank.comm  # created before the capture, in which CUDA allocates no memory
    with nccl.capture(stream) as graph:
        stream.launch(function)
        comm.all_reduce(x, out=y)
        forked.record(stream)
        other.wait(forked)
        other.launch(lambda: seen.append("fork"))
        comm.all_reduce(y, stream=other)
        joined.record(other)
        stream.wait(joined)
        stream.launch(lambda: seen.append("last"))
    del function
    gc.collect()
    assert alive() is not None
    assert seen == []
    other.launch(lambda: seen.append("not captured"))  # the fork ended with the capture
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


@on_ranks(1)
def test_branches_run_concurrently(rank: Rank) -> None:
    """Each branch waits for the other one."""
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


@on_ranks(2)
def test_the_calling_thread_launches_and_is_not_captured(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    array, seen = np.ones(_COUNT), []
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


@pytest.mark.gpu
@pytest.mark.parametrize(("nranks", "mode"), [(1, "relaxed"), (2, "thread_local"), (4, "global")])
@on_ranks(provider="cuda")
def test_every_collective_in_torchs_graphs(rank: Rank, mode: str) -> None:
    import torch

    torch.cuda.set_device(rank.device)
    programs = Programs(rank, rank.comm)
    for program, _, _ in programs.table.values():
        program()  # NCCL connects in the first call of a kind, which must not be in a capture
    torch.cuda.synchronize()
    for name, (program, _, _) in programs.table.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            program()
        for replay in range(_REPLAYS):
            programs.fill(replay)
            graph.replay()
            programs.check(name, replay)
        graph.reset()


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_arrays_with_dlpack_alone_in_torchs_graphs(rank: Rank) -> None:
    """Their owners are released without a query of a captured event."""
    import torch

    torch.cuda.set_device(rank.device)
    x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    array = OnlyDlpack(x)

    def reduce() -> None:
        rank.comm.all_reduce(array, stream=torch.cuda.current_stream())

    reduce()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        reduce()
        reduce()
    reduce()
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [2.0**4] * 4
    graph.reset()


@pytest.mark.gpu
@_WITH_CUPY
@on_ranks(2, provider="cuda")
def test_cupys_arrays_between_kernels(rank: Rank) -> None:
    """Arrays of CuPy and its current stream, with a kernel before and after."""
    import cupy

    with cupy.cuda.Device(rank.device or 0):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x, y = cupy.zeros(1000, cupy.float32), cupy.zeros(1000, cupy.float32)
            rank.comm.all_reduce(x, out=y)
            cupy.add(x, 1, out=x)
            stream.synchronize()
            stream.begin_capture()
            cupy.add(x, 1, out=x)
            rank.comm.all_reduce(x, out=y)
            cupy.multiply(y, 2, out=y)
            graph = stream.end_capture()
            x.fill(0)
        for replay in range(1, _REPLAYS + 1):
            graph.launch(stream)
            stream.synchronize()
            assert bool((y == 2.0 * replay * rank.nranks).all())
        del graph


@pytest.mark.gpu
@_WITH_CUPY
@on_ranks(2, provider="cuda")
def test_kinds_of_cupys_arrays(rank: Rank) -> None:
    import cupy

    device = rank.device or 0
    with cupy.cuda.Device(device):
        for dtype in ("int8", "float16", "float32", "complex64"):
            x = cupy.full((3, 4), rank.rank + 1, dtype)
            rank.comm.all_reduce(x)
            assert (x.get() == sum(range(1, rank.nranks + 1))).all()
        with pytest.raises(ValueError, match=r"^tensor: must be contiguous, has shape \(4, 3\)"):
            rank.comm.all_reduce(x.T)
        with pytest.raises(ValueError, match=r"^out: must be contiguous"):
            rank.comm.all_reduce(x, out=x.T)
        with pytest.raises(ValueError, match=r"^tensor: dtype\('int16'\) is not a dtype of NCCL"):
            rank.comm.all_reduce(cupy.zeros(3, "int16"))
        rank.comm.all_reduce(cupy.zeros((0, 3), "float32"))


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_torchs_kernels_in_our_capture(rank: Rank) -> None:
    """Kernels of torch inside of capture(), with the captured stream as torch's current stream."""
    import torch

    torch.cuda.set_device(rank.device)
    stream = rank.stream()
    x = torch.zeros(1000, device=f"cuda:{rank.device}")
    rank.comm.all_reduce(x)
    torch.cuda.synchronize()
    with (
        torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)),
        nccl.capture(stream) as graph,
    ):
        x.add_(1)
        rank.comm.all_reduce(x)
    wanted = 0.0
    for _ in range(_REPLAYS):
        graph.launch()
        wanted = (wanted + 1) * rank.nranks
    stream.synchronize()
    np.testing.assert_array_equal(x.cpu().numpy(), np.full(1000, wanted, np.float32))
    graph.close()


# Rules


class _Array(np.ndarray):
    """An array with weak references."""


@on_ranks(1)
def test_rules_of_capturing(rank: Rank) -> None:  # noqa: PLR0915
    stream, other, third = (rank.stream() for _ in range(3))
    event, array = rank.event(), np.ones(4)
    comm = rank.comm

    def refused(name: str, body: Callable[[], object]) -> None:
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
    array = rank.memory.put(np.ones(_COUNT))
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
    stream, array, objects = rank.stream(), rank.memory.put(np.ones(_COUNT)), []
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
    array = memory.put(np.ones(_COUNT))
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


def test_hostnccl_refuses_captures_that_end_elsewhere() -> None:
    """For callers of the driver's functions. The objects detect it before."""
    library = ctypes.CDLL(libraries.load("host").path)
    streams = [nccl.Stream("host") for _ in range(2)]
    first, second = (ctypes.c_void_p(stream.handle) for stream in streams)
    event, graph = nccl.Event("host"), ctypes.c_void_p()
    relaxed, unsupported, invalidated, unmatched = 2, 900, 901, 903

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


@pytest.mark.parametrize("grouped", [False, True])
@on_ranks(2, ids=2)
def test_a_graph_keeps_its_objects(rank: Rank, grouped: bool) -> None:
    """Objects without references in Python live as long as the graph may be launched."""
    result = np.zeros(_COUNT)

    def make() -> tuple[nccl.Graph, weakref.ref]:
        stream, fork, event = rank.stream(), rank.stream(), rank.event()
        comm = rank.communicator(1)
        array = np.full(_COUNT, 3.0).view(_Array)
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
    comm, peer, half = rank.comm, 1 - rank.rank, 4096
    buffer = comm.mem_alloc(2 * half)
    data = np.from_dlpack(buffer)

    def make() -> tuple[nccl.Graph, list[weakref.ref]]:
        window, part = comm.register_window(buffer), data[:half].view(_Array)
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
    text = "^work queued on the stream failed.* different calls"
    with pytest.raises(nccl.NcclInvalidUsageError, match=text) as raised:
        stream.synchronize()
    error = rank.comm.async_error()
    assert isinstance(error, nccl.NcclInvalidUsageError)
    assert "different calls" in str(error)
    assert raised.value.rank == error.rank == rank.rank
    assert raised.value.function == "cuStreamSynchronize"
    with pytest.raises(nccl.NcclInvalidUsageError, match=r"^the launch of a graph failed"):
        graph.launch()
    rank.comm.abort()
