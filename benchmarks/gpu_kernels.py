"""The all_reduce kernels over <pynccl/device.h> beside NCCL's all_reduce, called and in graphs."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator

import torch
from torch.utils.dlpack import from_dlpack

from benchmarks import gpu_calls, timing
from benchmarks.gpu_graphs import captured
from benchmarks.kernels import CpuKernels, GpuKernels, compile_for_cpus
from benchmarks.libraries import Call
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Figure
from benchmarks.world import World
from pynccl.errors import LibraryNotFoundError, MissingFunctionError, NcclError

__all__ = ["run"]

_SIZES = (4, 1 << 10, 4 << 10, 16 << 10, 64 << 10)  # bytes
_BLOCKS = 8
_CAPACITY = _SIZES[-1] // 4  # elements of each half of the scratch memory
_OURS = "all_reduce"
_KERNELS = ("kernel, one shot", "kernel, buffered")


def run(world: World, repeats: int, budget: float) -> Iterator[Figure | str]:
    """Measure each way for each size.

    Args:
        world: this rank's.
        repeats: samples of each way.
        budget: seconds that a sample should last.
    """
    comm = world.comm
    try:
        lsa = comm.team_lsa().nranks
        if lsa < world.nranks:
            yield f"not measured: only {lsa} of the ranks reach each other's memory"
            return
        kernels = _compile(world)
        memory = comm.symmetric_empty(3 * _CAPACITY)
        device_comm = comm.device_comm(lsa_barriers=_BLOCKS)
    except (LibraryNotFoundError, MissingFunctionError, NcclError, ImportError) as error:
        yield f"not measured: {error}"
        return
    argument = device_comm.as_argument(kernels.version).tobytes()
    whole = from_dlpack(memory)
    # On CPUs a kernel is a call, whose time is that of Python if Python makes it.
    loops = None if isinstance(kernels, GpuKernels) else gpu_calls.loops_of(world)
    for nbytes in _SIZES:
        count = nbytes // 4
        source, out = whole[:count], torch.zeros(count, device=world.device)
        window, to = memory.window.handle, out.data_ptr()
        scratch = 4 * _CAPACITY  # the offset in the window
        arguments = {
            "all_reduce_float32": argument + struct.pack("QQQQ", window, 0, to, count),
            "all_reduce_buffered_float32": argument
            + struct.pack("QQQQQQ", window, scratch, _CAPACITY, source.data_ptr(), to, count),
        }
        calls: dict[str, Call] = {_OURS: functools.partial(comm.all_reduce, source, out=out)}
        in_c = {_OURS: gpu_calls.bare(world, loops, source, out, 0)} if loops else {}
        for way, (name, content) in zip(_KERNELS, arguments.items(), strict=True):
            calls[way] = functools.partial(_launch, kernels, world.device, name, content)
            if loops and isinstance(kernels, CpuKernels):
                in_c[way] = kernels.loop(loops, name, content)
        for way, call in calls.items():
            _check(world, way, call, source, out)
        if world.device.type == "cuda":
            calls |= {f"{way}, a CUDA graph": captured(call) for way, call in calls.items()}
        timers = {way: world.timer(call) for way, call in calls.items()}
        timers |= {way: world.sampler(gpu_calls.mean_of(loop)) for way, loop in in_c.items()}
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


def _check(world: World, way: str, call: Call, source: torch.Tensor, out: torch.Tensor) -> None:
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
