"""Proves that captured work runs when its graph is launched and not before: every collective,
groups, plans, messages and functions, across streams; and that a graph runs again with new inputs,
on any stream. On GPUs, torch.cuda.graph and CuPy capture them, too. test_delays.py tests launches
among other operations, test_async.py asynchronous work in captures.
"""

from __future__ import annotations

import gc
import importlib.util
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support.memory import OnlyDlpack
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

COUNT = 1009
_REPLAYS = 3
_WITH_CUPY = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy")


def _contribution(rank: int, replay: int) -> np.ndarray:
    """Whole numbers, so that every sum is exact in any order."""
    return np.arange(COUNT, dtype=np.float32) % 97 + 10 * rank + replay


class Programs:
    """Every collective on static buffers: the call, the buffer of its result, and the result."""

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
    x, y, z, of_plan = (memory.put(np.zeros(COUNT)) for _ in range(4))
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
    x = rank.memory.put(np.ones(COUNT, np.float32))
    y = rank.memory.put(np.zeros(COUNT, np.float32))
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
