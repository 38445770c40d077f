"""The all_reduce kernels over <pynccl/device.h> beside NCCL's all_reduce, called and in graphs."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator

import torch
from torch.utils.dlpack import from_dlpack

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


def run(world: World, repeats: int, launches: int) -> Iterator[Figure | str]:
    """Measure each way for each size.

    Args:
        world: this rank's.
        repeats: samples of each way.
        launches: calls in a sample.
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
    for nbytes in _SIZES:
        count = nbytes // 4
        source, out = whole[:count], torch.zeros(count, device=world.device)
        window, to = memory.window.handle, out.data_ptr()
        one_shot = argument + struct.pack("QQQQ", window, 0, to, count)
        scratch = 4 * _CAPACITY  # the offset in the window
        buffered = argument + struct.pack(
            "QQQQQQ", window, scratch, _CAPACITY, source.data_ptr(), to, count
        )
        launch = functools.partial(_launch, kernels, world.device)
        calls: dict[str, Call] = {
            "all_reduce": functools.partial(comm.all_reduce, source, out=out),
            "kernel, one shot": functools.partial(launch, "all_reduce_float32", one_shot),
            "kernel, buffered": functools.partial(launch, "all_reduce_buffered_float32", buffered),
        }
        for way, call in calls.items():
            _check(world, way, call, source, out)
        if world.device.type == "cuda":
            calls |= {f"{way}, a CUDA graph": captured(call) for way, call in calls.items()}
        yield from world.compare(
            {way: world.timer(call) for way, call in calls.items()},
            launches,
            repeats,
            lambda way: re.sub(r"^kernel, [a-z ]+", "all_reduce", way),
            bytes=nbytes,
        )
    world.barrier()
    world.synchronize()
    device_comm.close()
    memory.close()


def _compile(world: World) -> CpuKernels | GpuKernels:
    if world.device.type == "cuda":
        return GpuKernels(world.device.index)
    library = world.folder / "kernels.so"
    if world.rank == 0:
        compile_for_cpus(library)
    world.barrier()
    return CpuKernels(library)


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
