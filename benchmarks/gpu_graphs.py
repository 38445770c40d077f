"""A sequence of operations: called one by one, as a recorded plan, as a CUDA graph.

Every operation has a tensor of its own, because NCCL may run at the same time what is grouped, as
the operations of a plan are. Each way is checked before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.libraries import Call, all_gather_of
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Figure
from benchmarks.world import World
from pynccl import nccl

__all__ = ["captured", "run"]

_LENGTH = 20
_SIZES = (8, 64 << 10, 1 << 20)  # bytes
_WARM_UP = 2


def run(world: World, repeats: int, replays: int) -> Iterator[Figure]:
    """Measure every way for each size.

    Args:
        world: this rank's.
        repeats: samples of each way.
        replays: sequences in a sample.
    """
    for nbytes in _SIZES:
        whole = torch.zeros(_LENGTH, nbytes // 4, device=world.device)
        ways = dict(_ways(world, whole))
        for way, call in ways.items():
            _check(world, whole, way, call)
        whole.zero_()
        yield from world.compare(
            {way: world.timer(call, _LENGTH) for way, call in ways.items()},
            replays,
            repeats,
            lambda way: "torch," + way.partition(",")[2],
            collective="all_reduce" if world.nranks > 1 else "all_gather",
            length=_LENGTH,
            bytes=nbytes,
        )


def _ways(world: World, whole: torch.Tensor) -> Iterator[tuple[str, Call]]:
    """The ways and their calls; a row of the tensor is an operation's."""
    rows, comm = whole.unbind(), world.comm
    if world.nranks > 1:
        ours = _for_each(comm.all_reduce, rows)
        theirs = _for_each(dist.all_reduce, rows)
    else:  # an all_reduce of one rank does nothing; gathering from one rank copies
        gather = all_gather_of(dist)
        pairs = list(zip(rows, torch.ones_like(whole).unbind(), strict=True))
        ours = _for_each(lambda pair: comm.all_gather(pair[1], out=pair[0]), pairs)
        theirs = _for_each(lambda pair: gather(*pair), pairs)
    yield "pynccl, called", ours
    if world.torch:
        yield "torch, called", theirs
    with nccl.plan() as plan:
        ours()
    yield "pynccl, a plan", plan
    if whole.is_cuda:
        yield "pynccl, a CUDA graph", captured(ours)
        if world.torch:
            yield "torch, a CUDA graph", captured(theirs)


def _for_each(function: Callable[[Any], Any], arguments: Iterable[Any]) -> Call:
    def call() -> None:
        for argument in arguments:
            function(argument)

    return call


def captured(call: Call) -> Call:
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


def _check(world: World, whole: torch.Tensor, way: str, call: Call) -> None:
    for _ in range(_WARM_UP):
        whole.fill_(world.rank + 1 if world.nranks > 1 else 0)
        call()
        world.synchronize()
    expected = world.nranks * (world.nranks + 1) // 2
    if not bool((whole == expected).all()):
        raise BenchmarkError(
            f"a sequence by {way} is wrong on rank {world.rank} of "
            f"{world.nranks}: {whole.flatten()[0].item()} instead of {expected}"
        )
