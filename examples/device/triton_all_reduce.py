"""A one-shot all_reduce in a Triton kernel: each rank loads the data of all others and adds it.

Run: python examples/device/triton_all_reduce.py

Each rank has N bytes in memory that the others can load. A program adds one block of all ranks, in
rank order, so that all ranks get the same bits. It synchronises with the same program of the other
ranks before and after: all data must be present first, and no rank may still need it afterwards.
Per rank, (n-1)N bytes are loaded from peers in one step. A ring moves 2(n-1)/n N bytes in 2(n-1)
steps, which takes longer for small messages. On CPUs, Triton's interpreter runs the kernel, so its
time says nothing about GPUs.

Prints, with other times:
rank 0 of 2: 4096 bytes are correct; kernel 27812 us, comm.all_reduce 18 us
rank 0 of 2: 65536 bytes are correct; kernel 109001 us, comm.all_reduce 25 us
"""

import os

import torch
from ranks import World, run

from pynccl.libraries import default_provider

if default_provider() == "host":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
import triton
import triton.language as tl

from pynccl.device import triton as peers

SIZES = [1024, 16 * 1024]
BLOCK = 4096


@triton.jit
def one_shot(pointers, signals, out, rank, nranks, count, BLOCK: tl.constexpr):
    """The sum of a block over all ranks."""
    program = tl.program_id(0)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    peers.barrier(signals, rank, nranks, program)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in range(nranks):
        total += peers.load(pointers, peer, offsets, tl.float32, inside, 0.0)
    tl.store(out + offsets, total, mask=inside)
    peers.barrier(signals, rank, nranks, program)


def all_reduce(world: World) -> str:
    comm, device = world.comm, world.device
    programs = triton.cdiv(max(SIZES), BLOCK)
    data = world.symmetric([max(SIZES)], "float32")
    signals = world.symmetric([peers.barrier_words(comm.nranks, programs)], "int64")
    lines = []
    for count in SIZES:
        generator = torch.Generator().manual_seed(comm.rank)
        data.tensor[:count] = torch.randint(-99, 99, (count,), generator=generator)
        out, expected = torch.empty(count, device=device), data.tensor[:count].clone()
        reduced = expected.clone()

        def kernel(count: int = count, out: torch.Tensor = out) -> None:
            one_shot[(triton.cdiv(count, BLOCK),)](
                data.pointers, signals.pointers, out, comm.rank, comm.nranks, count, BLOCK
            )

        def library(source: torch.Tensor = expected, out: torch.Tensor = reduced) -> None:
            comm.all_reduce(source, out=out)

        times = [world.median(call) for call in (kernel, library)]
        torch.testing.assert_close(out, reduced, rtol=0, atol=0)
        lines.append(
            f"rank {comm.rank} of {comm.nranks}: {4 * count} bytes are correct; "
            f"kernel {times[0]:.0f} us, comm.all_reduce {times[1]:.0f} us"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run(all_reduce, 2)
