"""A sequence of all_reduce operations: called one by one, as a recorded plan, as a CUDA graph.

Each way is checked before it is timed: after a sequence every element is multiplied by the number
of ranks as often as there are operations.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.clock import Elapsed
from benchmarks.gpu_figures import Sequence
from benchmarks.launcher import BenchmarkError
from benchmarks.peers import Call
from benchmarks.world import World
from pynccl import nccl

__all__ = ["OUR_GRAPH", "TORCH_GRAPH", "run"]

OUR_GRAPH = "pynccl, a CUDA graph"
TORCH_GRAPH = "torch, a CUDA graph"

_LENGTH = 20
_SIZES = (8, 64 << 10, 1 << 20)  # bytes
_WARM_UP = 2


def run(world: World, repeats: int, replays: int, without: Collection[str]) -> Iterator[Sequence]:
    """Measure every way for each size.

    Args:
        world: this rank's.
        repeats: samples of each way.
        replays: sequences in a sample.
        without: ways to leave out.
    """
    for nbytes in _SIZES:
        tensor = torch.zeros(nbytes // 4, device=world.device)
        ways = {way: make() for way, make in _ways(world, tensor) if way not in without}
        for way, call in ways.items():
            _check(world, tensor, way, call)
        tensor.zero_()
        samples: dict[str, list[Elapsed]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, call in ways.items():
                world.barrier()
                samples[way].append(world.clock.measure(call, replays))
        for way, elapsed in samples.items():
            slowest = world.maximum([sample.seconds / _LENGTH for sample in elapsed])
            yield Sequence(
                *(world.nranks, way, _LENGTH, nbytes, statistics.median(slowest), tuple(slowest))
            )


def _ways(world: World, tensor: torch.Tensor) -> Iterator[tuple[str, Callable[[], Call]]]:
    """The ways, each with what makes its call."""
    ours, theirs = _repeated(world.comm.all_reduce, tensor), _repeated(dist.all_reduce, tensor)
    yield "pynccl, called", lambda: ours
    if world.torch:
        yield "torch, called", lambda: theirs
    yield "pynccl, a plan", lambda: _recorded(ours)
    if tensor.is_cuda:
        yield OUR_GRAPH, lambda: _captured(ours)
        if world.torch:
            yield TORCH_GRAPH, lambda: _captured(theirs)


def _recorded(call: Call) -> Call:
    with nccl.plan() as plan:
        call()
    return plan


def _repeated(function: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Call:
    def call() -> None:
        for _ in range(_LENGTH):
            function(tensor)

    return call


def _captured(call: Call) -> Call:
    """Capture a call, which has been made before, and give its replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # NCCL connects in the first call of a kind, which cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # torch's watchdog asks events from a thread of its own at any time.
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        call()
    return graph.replay


def _check(world: World, tensor: torch.Tensor, way: str, call: Call) -> None:
    for _ in range(_WARM_UP):
        tensor.fill_(1)
        call()
        world.synchronize()
    if not bool((tensor == float(world.nranks) ** _LENGTH).all()):
        raise BenchmarkError(
            f"{_LENGTH} times all_reduce by {way} is wrong on rank {world.rank} of "
            f"{world.nranks}: {tensor[0].item()} instead of {world.nranks}**{_LENGTH}"
        )
