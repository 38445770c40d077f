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

__all__ = ["Timer", "bare", "loops_of", "mean_of", "run"]

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
    loops = loops_of(world)
    if not loops:
        yield "no C compiler was found: the bare C call is missing"
    ways = _ways(world, loops, tensor)
    for timer in ways.values():
        timer(_WARM_UP)
        world.synchronize()
    # A call that is waited for is compared with one that is.
    figures = world.compare(
        {way: world.sampler(mean_of(timer)) for way, timer in ways.items()},
        calls,
        repeats,
        lambda way: _TORCH + _ASYNC * way.endswith(_ASYNC),
        bytes=tensor.nbytes,
    )
    bare = next((figure["seconds"] for figure in figures if figure["way"] == _BARE), None)
    for figure in figures:
        over = None if bare is None else figure["seconds"] - bare
        yield {**figure, "over_c_seconds": over}


def _ways(world: World, loops: ctypes.CDLL | None, tensor: torch.Tensor) -> dict[str, Timer]:
    """A timer for each way."""
    ways: dict[str, Timer] = {}
    comm, mirror = world.comm, world.mirror
    stream = torch.cuda.current_stream().cuda_stream if tensor.is_cuda else 0
    if loops:
        ways[_BARE] = bare(world, loops, tensor, tensor, stream)
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
    groups = [("pynccl as dist", mirror, None)]
    groups += [(_TORCH, dist, None)] if world.torch else []
    groups += [
        (f"{_TORCH} {other.name.removeprefix('torch ')}", dist, other.group)
        for other in world.others
        if other.group
    ]
    for way, module, group in groups:
        names = {"all_reduce": module.all_reduce, "tensor": tensor, "group": group}
        given = ", group=group" if group else ""
        ways[way] = _timer(f"all_reduce(tensor{given})", **names)
        ways[f"{way}{_ASYNC}"] = _timer(f"all_reduce(tensor{given}, async_op=True).wait()", **names)
    return ways


def mean_of(timer: Timer) -> Callable[[int], Elapsed]:
    """From the seconds of so many calls to those of one."""
    return lambda calls: Elapsed(timer(calls) / calls)


def _timer(statement: str, **names: object) -> Timer:
    return timeit.Timer(statement, globals=names).timeit


def loops_of(world: World) -> ctypes.CDLL | None:
    """loop.c, compiled by rank 0; None where some rank has no compiler. All ranks call it."""
    if world.maximum([float(not compiler.find())]) != [0.0]:
        return None
    if world.rank == 0:
        compiler.shared_library(compiler.FOLDER / "loop.c", world.folder)
    world.barrier()
    return ctypes.CDLL(str(world.folder / "loop.so"))


def bare(
    world: World, loops: ctypes.CDLL, send: torch.Tensor, recv: torch.Tensor, stream: int
) -> Timer:
    """The loop over ncclAllReduce of float32."""
    loop = loops.loop_all_reduce
    loop.restype = ctypes.c_double
    function = ctypes.CDLL(world.comm.library.path).ncclAllReduce
    arguments = (
        ctypes.cast(function, ctypes.c_void_p),
        ctypes.c_void_p(send.data_ptr()),
        ctypes.c_void_p(recv.data_ptr()),
        ctypes.c_size_t(send.numel()),
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

    return timer
