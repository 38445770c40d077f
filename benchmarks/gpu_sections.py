"""The sections of benchmarks.gpu, measured by all ranks of a world.

Each way is checked before it is timed, and the ways take turns. A sample is the mean over a fixed
number of calls or replays, or over as many as fit into the budget of seconds, and the maximum over
the ranks.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import struct
import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.dlpack import from_dlpack

from benchmarks import timing
from benchmarks.kernels import (
    OWN,
    CpuKernels,
    GpuKernels,
    c_compiler,
    compile_for_cpus,
    shared_library,
)
from benchmarks.libraries import Call, Library
from benchmarks.operations import Buffers, exact_row
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Elapsed, Figure, Timer
from benchmarks.world import Settings, World
from pynccl import nccl, raw
from pynccl.errors import LibraryNotFoundError, MissingFunctionError, NcclError
from pynccl.tools import lab
from pynccl.tools.bench import call_of
from pynccl.tools.trace.bandwidth import BUS_FACTORS, bandwidth

__all__ = ["calls", "collectives", "kernels", "sequences", "sweep"]

_WARM_UP = 2
_BARE = "NCCL's C function, from C"
_TORCH = "torch.distributed"
_ASYNC = ", async, wait"
_ELEMENTS = 1024  # float32: small enough that the device is done before the next call
# Calls in a sample. The device's queue must not fill up, or the host would wait for it.
_CALLS = 100
_CALLS_SHARED = 10  # each takes several turns of some milliseconds
_LENGTH = 20
_SEQUENCE_SIZES = (8, 64 << 10, 1 << 20)  # bytes
_KERNEL_SIZES = (4, 1 << 10, 4 << 10, 16 << 10, 64 << 10)  # bytes
_BLOCKS = 8
_CAPACITY = _KERNEL_SIZES[-1] // 4  # elements of each half of the scratch memory
_OURS = "all_reduce"
_KERNELS = ("kernel, one shot", "kernel, buffered")
_CTAS = (1, 4, 16)


def calls(world: World, repeats: int, number: int | None = None) -> Iterator[Figure | str]:
    """Measure the host time of one all_reduce: in C, and through the layers of pynccl and torch.

    All ways call the same NCCL on the same tensor, in turns. The bare C call is a loop in C over
    the function of the loaded library. The difference to it is the cost of a way.
    """
    number = number or (_CALLS_SHARED if world.shares else _CALLS)
    tensor = torch.zeros(_ELEMENTS, device=world.device)
    loops = _loops(world)
    if not loops:
        yield "no C compiler was found: the bare C call is missing"
    ways = _ways_of_calls(world, loops, tensor)
    for timer in ways.values():
        timer(_WARM_UP)
        world.synchronize()
    # Ways that wait for the operation are compared with torch.distributed and a wait.
    figures = world.compare(
        {way: world.sampler(timer) for way, timer in ways.items()},
        number,
        repeats,
        lambda way: _TORCH + _ASYNC * way.endswith(_ASYNC),
        bytes=tensor.nbytes,
    )
    bare = next((figure["seconds"] for figure in figures if figure["way"] == _BARE), None)
    for figure in figures:
        over = None if bare is None else figure["seconds"] - bare
        yield {**figure, "over_c_seconds": over}


def _ways_of_calls(
    world: World, loops: ctypes.CDLL | None, tensor: torch.Tensor
) -> dict[str, Timer]:
    """A timer for each way."""
    ways: dict[str, Timer] = {}
    comm, mirror = world.comm, world.mirror
    stream = torch.cuda.current_stream().cuda_stream if tensor.is_cuda else 0
    if loops:
        ways[_BARE] = _bare(world, loops, tensor, tensor, stream)
    address = tensor.data_ptr()
    ways["pynccl.raw, integers"] = _statement(
        "all_reduce(address, address, count, dtype, op, comm, stream)",
        all_reduce=comm.library.ncclAllReduce,
        address=address,
        count=_ELEMENTS,
        dtype=int(raw.ncclFloat32),
        op=int(raw.ncclSum),
        comm=comm.handle,
        stream=stream,
    )
    ways["pynccl Communicator"] = _statement(
        "all_reduce(tensor)", all_reduce=comm.all_reduce, tensor=tensor
    )
    with nccl.plan() as plan:
        comm.all_reduce(tensor)
    ways["pynccl plan of one"] = _statement("plan()", plan=plan)
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
        ways[way] = _statement(f"all_reduce(tensor{given})", **names)
        ways[f"{way}{_ASYNC}"] = _statement(
            f"all_reduce(tensor{given}, async_op=True).wait()", **names
        )
    return ways


def _statement(statement: str, **names: object) -> Timer:
    timer = timeit.Timer(statement, globals=names)
    return lambda calls: Elapsed(timer.timeit(calls) / calls)


def _loops(world: World) -> ctypes.CDLL | None:
    """Return loop.c, compiled by rank 0; None if a rank has no compiler. All ranks call it."""
    if world.maximum([float(not c_compiler())]) != [0.0]:
        return None
    if world.rank == 0:
        shared_library(OWN / "loop.c", world.folder)
    world.barrier()
    return ctypes.CDLL(str(world.folder / "loop.so"))


def _bare(
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

    def timer(calls: int) -> Elapsed:
        seconds: float = loop(*arguments, ctypes.c_long(calls))
        if seconds < 0:
            raise BenchmarkError(f"ncclAllReduce, called from C, failed with {-seconds:g}")
        return Elapsed(seconds / calls)

    return timer


def sequences(world: World, repeats: int, replays: int) -> Iterator[Figure]:
    """Measure a sequence of operations: called one by one, as a recorded plan, as a CUDA graph.

    Every operation has its own tensor, because NCCL may run the operations of a group, and so of a
    plan, concurrently.
    """
    for nbytes in _SEQUENCE_SIZES:
        whole = torch.zeros(_LENGTH, nbytes // 4, device=world.device)
        ways = dict(_ways_of_sequences(world, whole))
        for way, call in ways.items():
            _check_sequence(world, whole, way, call)
        whole.zero_()
        yield from world.compare(
            {way: world.timer(call, _LENGTH) for way, call in ways.items()},
            replays,
            repeats,
            lambda way: "torch," + way.partition(",")[2],
            collective=_collective(world),
            length=_LENGTH,
            bytes=nbytes,
        )


def _ways_of_sequences(world: World, whole: torch.Tensor) -> Iterator[tuple[str, Call]]:
    """Yield the ways and their calls; each operation uses a row of the tensor."""
    rows, comm = whole.unbind(), world.comm
    if world.nranks > 1:
        ours = _for_each(comm.all_reduce, rows)
        theirs = _for_each(dist.all_reduce, rows)
    else:  # an all_reduce of one rank does nothing; gathering from one rank copies
        pairs = list(zip(torch.ones_like(whole).unbind(), rows, strict=True))
        ours = _for_each(lambda pair: comm.all_gather(pair[0], out=pair[1]), pairs)
        gathers = [call_of(dist, "all_gather", world.rank, pair) for pair in pairs]
        theirs = _for_each(lambda gather: gather(), gathers)
    yield "pynccl, called", ours
    if world.torch:
        yield "torch, called", theirs
    with nccl.plan() as plan:
        ours()
    yield "pynccl, a plan", plan
    if whole.is_cuda:
        yield "pynccl, a CUDA graph", _captured(ours)
        if world.torch:
            yield "torch, a CUDA graph", _captured(theirs)


def _for_each(function: Callable[[Any], Any], arguments: Iterable[Any]) -> Call:
    def call() -> None:
        for argument in arguments:
            function(argument)

    return call


def _captured(call: Call) -> Call:
    """Capture a call into a CUDA graph, and return its replay."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # NCCL connects in the first operation of a kind, which cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # torch's watchdog thread queries events at any time.
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        call()
    return graph.replay


def _check_sequence(world: World, whole: torch.Tensor, way: str, call: Call) -> None:
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


def kernels(world: World, repeats: int, budget: float) -> Iterator[Figure | str]:
    """Measure the kernels over <pynccl/device.h> and NCCL's all_reduce, called and in graphs."""
    comm = world.comm
    try:
        lsa = comm.team_lsa().nranks
        if lsa < world.nranks:
            yield f"not measured: only {lsa} of the ranks reach each other's memory"
            return
        compiled = _compile(world)
        memory = comm.symmetric_empty(3 * _CAPACITY)
        device_comm = comm.device_comm(lsa_barriers=_BLOCKS)
    except (LibraryNotFoundError, MissingFunctionError, NcclError, ImportError) as error:
        yield f"not measured: {error}"
        return
    argument = device_comm.as_argument(compiled.version).tobytes()
    whole = from_dlpack(memory)
    # On CPUs a kernel is a function call, which Python would dominate.
    loops = None if isinstance(compiled, GpuKernels) else _loops(world)
    for nbytes in _KERNEL_SIZES:
        count = nbytes // 4
        source, out = whole[:count], torch.zeros(count, device=world.device)
        window, to = memory.window.handle, out.data_ptr()
        scratch = 4 * _CAPACITY  # the offset in the window
        arguments = {
            "all_reduce_float32": argument + struct.pack("QQQQ", window, 0, to, count),
            "all_reduce_buffered_float32": argument
            + struct.pack("QQQQQQ", window, scratch, _CAPACITY, source.data_ptr(), to, count),
        }
        ways: dict[str, Call] = {_OURS: partial(comm.all_reduce, source, out=out)}
        in_c = {_OURS: _bare(world, loops, source, out, 0)} if loops else {}
        for way, (name, content) in zip(_KERNELS, arguments.items(), strict=True):
            ways[way] = partial(_launch, compiled, world.device, name, content)
            if loops and isinstance(compiled, CpuKernels):
                in_c[way] = compiled.loop(loops, name, content)
        for way, call in ways.items():
            _check_kernel(world, way, call, source, out)
        if world.device.type == "cuda":
            ways |= {f"{way}, a CUDA graph": _captured(call) for way, call in ways.items()}
        timers = {way: world.timer(call) for way, call in ways.items()}
        timers |= {way: world.sampler(loop) for way, loop in in_c.items()}
        yield from timing.figures(
            timing.samples(timers, repeats, budget, world.clock.limit),
            lambda way: re.sub(r"^kernel, [a-z ]+", _OURS, way),
            key="way",
            bytes=nbytes,
        )
    world.barrier()
    world.synchronize()
    device_comm.close()
    memory.close()


def _compile(world: World) -> CpuKernels | GpuKernels:
    if world.device.type == "cuda":
        return GpuKernels(world.device.index)
    if world.rank == 0:
        compile_for_cpus(world.folder)
    world.barrier()
    return CpuKernels(world.folder / "kernels.so")


def _launch(
    kernels: CpuKernels | GpuKernels, device: torch.device, name: str, arguments: bytes
) -> None:
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    kernels.launch(name, arguments, _BLOCKS, stream)


def _check_kernel(
    world: World, way: str, call: Call, source: torch.Tensor, out: torch.Tensor
) -> None:
    for turn in range(3):
        source.fill_(world.rank + turn)
        out.zero_()
        world.synchronize()
        world.barrier()
        call()
        world.synchronize()
        world.barrier()
        expected = world.nranks * (world.nranks - 1) // 2 + world.nranks * turn
        if not bool((out == expected).all()):
            raise BenchmarkError(f"{way} of {4 * out.numel()} bytes is wrong on rank {world.rank}")


def sweep(world: World, repeats: int, sizes: tuple[int, ...], side: int) -> Iterator[Figure]:
    """Measure how much of a collective a matrix product hides, by the overlap lab, which explains
    what is exposed, for NCCL's number of CTAs and for given ones; at least three rounds.
    """
    ctas = ["default", *map(str, _ctas_to_try())] if world.provider == "cuda" else ["default"]
    choices = {
        "collective": [_collective(world)],
        "ctas": ctas,
        "load": [f"gemm:{side}"],
        "nbytes": sizes,
    }
    for row in lab.sweep_overlaps(
        world.comm, lab.combinations(choices), repeats=max(3, repeats), limit=10.0
    ):
        yield {
            "collective": row.setting["collective"],
            "bytes": row.setting["nbytes"],
            "ctas": row.setting["ctas"],
            "product_seconds": row.compute.median,
            "collective_seconds": row.communication.median,
            "together_seconds": row.both.median,
            "hidden": row.hidden,
            "product_slowdown": row.compute_slowdown,
            "collective_slowdown": row.communication_slowdown,
            "verdict": str(row.verdict),
        }


def _collective(world: World) -> str:
    """An all_reduce of one rank does nothing; gathering from one rank copies."""
    return "all_reduce" if world.nranks > 1 else "all_gather"


def _ctas_to_try() -> tuple[int, ...]:
    """Return the numbers of CTAs to measure: NCCL_MAX_CTAS, which overrides every configuration and
    is set if ranks share a GPU, else _CTAS.
    """
    text = os.environ.get("NCCL_MAX_CTAS", "")
    return (int(text),) if text.isdigit() and int(text) else _CTAS


def collectives(world: World, settings: Settings) -> Iterator[Figure | str]:
    """Measure every collective at every size: the figures of each library, with the bandwidths that
    nccl-tests defines, in GB/s. The results of each row are checked before it is timed.
    """
    if world.refusal:
        yield world.refusal
    # A collection inside a sample would be measured, on every rank that waits for this one.
    gc.disable()
    gc.freeze()
    stop = time.monotonic() + settings.seconds
    rows = [
        exact_row(collective, "float32", world.nranks, nbytes)
        for collective in BUS_FACTORS
        for nbytes in settings.sizes
    ]
    baseline = world.torch.name if world.torch else ""
    missing: set[tuple[str, str]] = set()  # libraries without a collective
    for number, row in enumerate(rows := list(dict.fromkeys(rows))):
        if world.maximum([float(time.monotonic() > stop)]) != [0.0]:
            left = ", ".join(f"{one.operation} of {one.nbytes}" for one in rows[number:])
            yield f"not measured, the time was up: {left} bytes"
            return
        gc.collect()
        buffers = Buffers(row, world.rank, in_place=True, device=world.device)
        calls: dict[str, Call | None] = {}
        for library in world.libraries:
            if (library.name, row.operation) in missing:
                continue
            if reason := _check_library(world, library, buffers):
                missing.add((library.name, row.operation))
                yield f"{row.operation} by {library.name}: {reason}"
            else:
                calls[library.name] = library.call(buffers)
        buffers.clear()
        measured = timing.samples(
            {name: world.timer(call) for name, call in calls.items() if call},
            settings.repeats,
            settings.budget,
            world.clock.limit,
        )
        figures = timing.figures(
            measured, lambda _: baseline, collective=row.operation, bytes=row.nbytes
        )
        for figure in figures:
            widths = bandwidth(row.operation, row.nbytes, figure["seconds"], row.nranks)
            yield {**figure, **widths._asdict()}


def _check_library(world: World, library: Library, buffers: Buffers) -> str:
    """Run a library once and compare the result. Return why it cannot run, or ''."""
    reason, row = "", buffers.row
    try:
        buffers.fill()
        call = library.call(buffers)
        assert call
        call()
        world.synchronize()
    except Exception as error:  # of another library, which is reported as missing
        if library is world.pynccl:
            raise
        reason = str(error) or type(error).__name__
    if not (reason := world.agree(reason)) and (wrong := buffers.wrong()):
        raise BenchmarkError(f"{row.operation} of {row.nbytes} bytes by {library.name}: {wrong}")
    return reason
