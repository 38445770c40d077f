"""A reduce_scatter fused behind the matmul that feeds it: one Triton kernel, tile by tile.

Run: python examples/device/triton_matmul_reduce_scatter.py

Each rank has a part of the inner dimension, and thus a partial product of all rows; each gets the
sum of M rows. The first programs multiply: each stores its tile into the memory of the rank that
gets the rows, with a signal, this rank's rows last. The others add: each waits until a tile has
arrived from all ranks, and adds in rank order. Per rank, (n-1)MN elements go to peers, as in a
reduce_scatter by direct sends. The last program of a call synchronises with those of the other
ranks: after that, all parts have been read. On CPUs, Triton's interpreter runs the kernel, so its
time says nothing about GPUs.

Prints, with other times:
rank 0 of 2: (128, 64) @ (64, 128) is right; kernel 298712 us, matmul and reduce_scatter 69 us
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

ROWS, INNER, COLUMNS = 64, 64, 128  # rows of each rank's result; a rank's part of the inner one
TILE_ROWS, TILE_COLUMNS = 32, 64


@triton.jit
def matmul_reduce_scatter(
    x,
    w,
    parts,
    signals,
    y,
    calls,
    counter,
    rank,
    nranks,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    """Compute y = this rank's rows of the sum of x @ w; parts is (ranks, ROWS, COLUMNS)."""
    program = tl.program_id(0)
    tiles: tl.constexpr = (ROWS // TILE_ROWS) * (COLUMNS // TILE_COLUMNS)
    # Signals are counted over all calls. The count is in memory, so that a graph can be relaunched.
    call = tl.load(calls) + 1
    tile = program % tiles
    rows = tile // (COLUMNS // TILE_COLUMNS) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    columns = tile % (COLUMNS // TILE_COLUMNS) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    place = rows[:, None] * COLUMNS + columns[None, :]
    if program < nranks * tiles:
        owner = (rank + 1 + program // tiles) % nranks
        inner = tl.arange(0, INNER)
        left = tl.load(x + (owner * ROWS + rows[:, None]) * INNER + inner[None, :])
        right = tl.load(w + inner[:, None] * COLUMNS + columns[None, :])
        product = tl.dot(left, right, input_precision="ieee")
        target = rank * ROWS * COLUMNS + place
        peers.put_signal(parts, signals, owner, target, product, tl.float32, tile)
    else:
        peers.wait(signals, rank, call * nranks, tile)
        total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
        for source in range(nranks):
            total += peers.load(parts, rank, source * ROWS * COLUMNS + place, tl.float32)
        tl.store(y + place, total)
    if peers.arrive_last(counter, tl.num_programs(0)):
        peers.barrier(signals, rank, nranks, 0, tiles)
        tl.store(calls, call)


def forward(world: World) -> str:
    comm, device = world.comm, world.device
    tiles = (ROWS // TILE_ROWS) * (COLUMNS // TILE_COLUMNS)
    parts = world.symmetric([comm.nranks, ROWS, COLUMNS], "float32")
    signals = world.symmetric([tiles + peers.barrier_words(comm.nranks)], "int64")
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    generator = torch.Generator().manual_seed(comm.rank)
    shape = (comm.nranks * ROWS, INNER)
    x = torch.randint(-9, 9, shape, generator=generator).to(device, torch.float32)
    w = (torch.arange(INNER * COLUMNS, device=device) + comm.rank) % 7 - 3.0
    w = w.reshape(INNER, COLUMNS)
    y = torch.empty(ROWS, COLUMNS, device=device)
    product = torch.empty(comm.nranks * ROWS, COLUMNS, device=device)
    expected = torch.empty_like(y)

    def kernel() -> None:
        matmul_reduce_scatter[((comm.nranks + 1) * tiles,)](
            x,
            w,
            parts.pointers,
            signals.pointers,
            y,
            counts[:1],
            counts[1:],
            comm.rank,
            comm.nranks,
            ROWS,
            INNER,
            COLUMNS,
            TILE_ROWS,
            TILE_COLUMNS,
        )

    def library() -> None:
        torch.matmul(x, w, out=product)
        comm.reduce_scatter(product, out=expected)

    times = [world.median(call) for call in (kernel, library)]
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    return (
        f"rank 0 of {comm.nranks}: {tuple(x.shape)} @ {tuple(w.shape)} is right; "
        f"kernel {times[0]:.0f} us, matmul and reduce_scatter {times[1]:.0f} us"
    )


if __name__ == "__main__":
    run(forward, 2)
