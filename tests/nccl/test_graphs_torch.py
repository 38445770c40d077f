"""Proves on GPUs that torch.cuda.graph and CuPy capture collectives and groups into their graphs,
with several ranks on one GPU, replayed with new inputs. test_async.py tests asynchronous work in
captures, test_graph_rules.py queries of other threads.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from pynccl import nccl
from tests.nccl.test_graphs import Programs
from tests.support import gpu
from tests.support.memory import OnlyDlpack
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(gpu.missing()), reason=gpu.missing() or "there is a GPU"),
]

REPLAYS = 3
_WITH_CUPY = pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy")


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
        for replay in range(REPLAYS):
            programs.fill(replay)
            graph.replay()
            programs.check(name, replay)
        graph.reset()


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
        for replay in range(1, REPLAYS + 1):
            graph.launch(stream)
            stream.synchronize()
            assert bool((y == 2.0 * replay * rank.nranks).all())
        del graph


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
    graph.upload()
    wanted = 0.0
    for _ in range(REPLAYS):
        graph.launch()
        wanted = (wanted + 1) * rank.nranks
    stream.synchronize()
    np.testing.assert_array_equal(x.cpu().numpy(), np.full(1000, wanted, np.float32))
    graph.close()
