"""How long the host is in one all_reduce call: in C, through pynccl's layers, through torch's.

All ways call the same NCCL on the same tensor, in turns. The bare C call is a loop in C over the
function of the loaded library; what a way takes beyond it is the cost of that way.
"""

from __future__ import annotations

import ctypes
import timeit
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from benchmarks import compiler
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Elapsed, Figure
from benchmarks.world import World
from pynccl import nccl, raw

__all__ = ["run"]

_BARE = "NCCL's C function, from C"
_TORCH = "torch.distributed"
_ASYNC = ", async, wait"
_ELEMENTS = 1024  # float32: small enough that the device is done before the next call
_WARM_UP = 5
# Calls in a sample. The device's queue must not fill up, or the host would wait for it.
_CALLS = 100
_CALLS_SHARED = 10  # each takes several turns of some milliseconds

Timer = Callable[[int], float]


def run(world: World, repeats: int, calls: int | None = None) -> Iterator[Figure | str]:
    """Measure every way there is.

    Args:
        world: this rank's.
        repeats: samples of each way.
        calls: in a sample; the default is what suits the world.
    """
    calls = calls or (_CALLS_SHARED if world.shares else _CALLS)
    tensor = torch.zeros(_ELEMENTS, device=world.device)
    ways, note = _ways(world, tensor)
    if note:
        yield note
    for timer in ways.values():
        timer(_WARM_UP)
        world.synchronize()
    # A call that is waited for is compared with one that is.
    figures = world.compare(
        {way: world.sampler(_mean_of(timer)) for way, timer in ways.items()},
        calls,
        repeats,
        lambda way: _TORCH + _ASYNC * way.endswith(_ASYNC),
        bytes=tensor.nbytes,
    )
    bare = next((figure["seconds"] for figure in figures if figure["way"] == _BARE), None)
    for figure in figures:
        over = None if bare is None else figure["seconds"] - bare
        yield {**figure, "over_c_seconds": over}


def _ways(world: World, tensor: torch.Tensor) -> tuple[dict[str, Timer], str]:
    """A timer for each way, and why the bare call is missing, or ''."""
    ways: dict[str, Timer] = {}
    comm, mirror = world.comm, world.mirror
    stream = torch.cuda.current_stream().cuda_stream if tensor.is_cuda else 0
    bare, note = _bare(world, tensor, stream)
    if bare:
        ways[_BARE] = bare
    address = tensor.data_ptr()
    ways["pynccl.raw, integers"] = _timer(
        "all_reduce(address, address, count, dtype, op, comm, stream)",
        all_reduce=comm.library.ncclAllReduce,
        address=address,
        count=_ELEMENTS,
        dtype=int(raw.ncclFloat32),
        op=int(raw.ncclSum),
        comm=comm.handle,
        stream=stream,
    )
    ways["pynccl Communicator"] = _timer(
        "all_reduce(tensor)", all_reduce=comm.all_reduce, tensor=tensor
    )
    with nccl.plan() as plan:
        comm.all_reduce(tensor)
    ways["pynccl plan of one"] = _timer("plan()", plan=plan)
    of_mirror = {"all_reduce": mirror.all_reduce, "tensor": tensor}
    ways["pynccl as dist"] = _timer("all_reduce(tensor)", **of_mirror)
    ways[f"pynccl as dist{_ASYNC}"] = _timer(
        "all_reduce(tensor, async_op=True).wait()", **of_mirror
    )
    if world.torch:
        of_torch = {"all_reduce": dist.all_reduce, "tensor": tensor}
        ways[_TORCH] = _timer("all_reduce(tensor)", **of_torch)
        ways[f"{_TORCH}{_ASYNC}"] = _timer("all_reduce(tensor, async_op=True).wait()", **of_torch)
    for other in world.others:
        if other.group:
            way = f"{_TORCH} {other.name.removeprefix('torch ')}"
            of_other = {"all_reduce": dist.all_reduce, "tensor": tensor, "group": other.group}
            ways[way] = _timer("all_reduce(tensor, group=group)", **of_other)
            ways[f"{way}{_ASYNC}"] = _timer(
                "all_reduce(tensor, group=group, async_op=True).wait()", **of_other
            )
    return ways, note


def _mean_of(timer: Timer) -> Callable[[int], Elapsed]:
    return lambda calls: Elapsed(timer(calls) / calls)


def _timer(statement: str, **names: object) -> Timer:
    return timeit.Timer(statement, globals=names).timeit


def _bare(world: World, tensor: torch.Tensor, stream: int) -> tuple[Timer | None, str]:
    """The loop in C, compiled by rank 0; None with the reason where some rank has no compiler."""
    if world.maximum([float(not compiler.find())]) != [0.0]:
        return None, "no C compiler was found: the bare C call is missing"
    if world.rank == 0:
        compiler.shared_library("loop.c", world.folder)
    world.barrier()
    loop = ctypes.CDLL(str(world.folder / "loop.so")).loop
    loop.restype = ctypes.c_double
    function = ctypes.CDLL(world.comm.library.path).ncclAllReduce
    pointer = ctypes.cast(function, ctypes.c_void_p)
    arguments = (
        pointer,
        ctypes.c_void_p(tensor.data_ptr()),
        ctypes.c_size_t(_ELEMENTS),
        int(raw.ncclFloat32),
        int(raw.ncclSum),
        ctypes.c_void_p(world.comm.handle),
        ctypes.c_void_p(stream),
    )

    def timer(calls: int) -> float:
        seconds: float = loop(*arguments, ctypes.c_long(calls))
        if seconds < 0:
            raise BenchmarkError(f"ncclAllReduce, called from C, failed with {-seconds:g}")
        return seconds

    return timer, ""
