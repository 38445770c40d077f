"""An all_gather fused into the matmul that uses it: one Triton kernel, tile by tile.

Run: python examples/device/triton_all_gather_matmul.py

Each rank has M rows of x; every rank computes x of all ranks times w. The first programs put the
tiles of this rank's rows into the memory of all ranks, each with a signal. The others multiply:
each waits for the one tile that it needs. They begin with this rank's rows, so that the tiles of
the peers arrive in the meantime. Per rank, (n-1)MK elements go to peers, as in an all_gather. The
last program of a call synchronises with those of the other ranks: after that, no rank reads the
gathered rows. On CPUs, Triton's interpreter runs the kernel, so its time says nothing about GPUs.

Prints, with other times:
rank 0 of 2: (128, 64) @ (64, 128) is correct; kernel 210423 us, all_gather and matmul 66 us
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

ROWS, INNER, COLUMNS = 64, 64, 128  # of each rank's x, and of w
TILE_ROWS, TILE_COLUMNS = 32, 64


@triton.jit
def all_gather_matmul(
    x,
    gathered,
    signals,
    w,
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
    """Compute y = (x of all ranks) @ w; gathered is (ranks, ROWS, INNER)."""
    program = tl.program_id(0)
    tiles = ROWS // TILE_ROWS
    inner = tl.arange(0, INNER)
    # Signals are counted over all calls. The count is in memory, so that a graph can be relaunched.
    call = tl.load(calls) + 1
    if program < tiles:
        rows = program * TILE_ROWS + tl.arange(0, TILE_ROWS)
        tile = tl.load(x + rows[:, None] * INNER + inner[None, :])
        target = (rank * ROWS + rows[:, None]) * INNER + inner[None, :]
        for step in range(nranks):
            peer = (rank + step) % nranks
            word = rank * tiles + program
            peers.put_signal(gathered, signals, peer, target, tile, tl.float32, word)
    else:
        job = program - tiles
        row_tile = job // (COLUMNS // TILE_COLUMNS)
        shard = (rank + row_tile // tiles) % nranks
        tile_of_shard = row_tile % tiles
        rows = shard * ROWS + tile_of_shard * TILE_ROWS + tl.arange(0, TILE_ROWS)
        columns = job % (COLUMNS // TILE_COLUMNS) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        right = tl.load(w + inner[:, None] * COLUMNS + columns[None, :])
        peers.wait(signals, rank, call, shard * tiles + tile_of_shard)
        source = rows[:, None] * INNER + inner[None, :]
        left = peers.load(gathered, rank, source, tl.float32)
        product = tl.dot(left, right, input_precision="ieee")
        tl.store(y + rows[:, None] * COLUMNS + columns[None, :], product)
    if peers.arrive_last(counter, tl.num_programs(0)):
        peers.barrier(signals, rank, nranks, 0, nranks * tiles)
        tl.store(calls, call)


def forward(world: World) -> str:
    comm, device = world.comm, world.device
    tiles = ROWS // TILE_ROWS
    gathered = world.symmetric([comm.nranks, ROWS, INNER], "float32")
    words = comm.nranks * tiles + peers.barrier_words(comm.nranks)
    signals = world.symmetric([words], "int64")
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    generator = torch.Generator().manual_seed(comm.rank)
    x = torch.randint(-9, 9, (ROWS, INNER), generator=generator).to(device, torch.float32)
    w = torch.arange(INNER * COLUMNS, device=device).reshape(INNER, COLUMNS) % 7 - 3.0
    y = torch.empty(comm.nranks * ROWS, COLUMNS, device=device)
    apart = torch.empty(comm.nranks * ROWS, INNER, device=device)
    expected = torch.empty_like(y)

    def kernel() -> None:
        programs = tiles + comm.nranks * tiles * (COLUMNS // TILE_COLUMNS)
        all_gather_matmul[(programs,)](
            x,
            gathered.pointers,
            signals.pointers,
            w,
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
        comm.all_gather(x, out=apart)
        torch.matmul(apart, w, out=expected)

    times = [world.median(call) for call in (kernel, library)]
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    return (
        f"rank 0 of {comm.nranks}: {tuple(apart.shape)} @ {tuple(w.shape)} is correct; "
        f"kernel {times[0]:.0f} us, all_gather and matmul {times[1]:.0f} us"
    )


if __name__ == "__main__":
    run(forward, 2)
