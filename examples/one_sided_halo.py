"""A halo exchange with put_signal() and wait_signal(): each rank writes its edges into its
neighbours' memory, which take no part until they need the data.

Run: python examples/one_sided_halo.py

A rod is heated at one end and cooled at the other. Each of 4 ranks holds 16 of its cells, plus one
cell on either side for its neighbours' edges, in memory that all ranks have registered as a window.
Each step puts 8 bytes into each neighbour's window, each with a signal, waits for as many signals,
and updates. The cells are double-buffered in two halves of the window: a neighbour that is a step
ahead writes into the other half.

Prints:
rank 0: steps 2000, mean temperature 79.02
rank 1: steps 2000, mean temperature 44.24
rank 2: steps 2000, mean temperature 20.00
rank 3: steps 2000, mean temperature 5.56
largest difference from one rank alone: 0.0
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import torch

from pynccl import nccl
from pynccl.libraries import default_provider

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS, CELLS, STEPS = 4, 16, 2000
HOT = 100.0


def update(old: torch.Tensor, new: torch.Tensor) -> None:
    """One step of heat conduction for all cells except those at the ends."""
    new[1:-1] = old[1:-1] + 0.25 * (old[:-2] - 2 * old[1:-1] + old[2:])


def run(rank: int, unique_id: nccl.UniqueId, provider: str) -> list[float]:
    device, stream = torch.device("cpu"), None
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        stream = torch.cuda.current_stream()
    with nccl.Communicator(NRANKS, unique_id, rank, provider=provider, device=device) as comm:
        buffer = comm.mem_alloc((2, CELLS + 2), "float64")
        halves = torch.from_dlpack(buffer).zero_()
        if rank == 0:
            halves[:, 0] = HOT
        neighbours = {}  # with what they get, and where it goes in a half: the far edge's halo cell
        if rank > 0:
            neighbours[rank - 1] = (1, CELLS + 1)
        if rank < NRANKS - 1:
            neighbours[rank + 1] = (CELLS, 0)
        with comm.register_window(buffer) as window:
            for step in range(STEPS):
                half = halves[step % 2]
                for peer, (edge, halo) in neighbours.items():
                    offset = halves.element_size() * (step % 2 * (CELLS + 2) + halo)
                    comm.put_signal(half[edge : edge + 1], peer, window, offset, stream=stream)
                comm.wait_signal(list(neighbours), stream=stream)
                update(half, halves[(step + 1) % 2])
            # No rank may close its window while a neighbour may still write into it.
            comm.all_reduce(torch.zeros(1, device=device), stream=stream)
        return halves[STEPS % 2, 1:-1].tolist()


def main() -> None:
    provider = default_provider()
    unique_id = nccl.get_unique_id(provider)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch"])  # once, for all ranks
    with ProcessPoolExecutor(NRANKS, mp_context=forks) as processes:
        parts = list(processes.map(run, range(NRANKS), repeat(unique_id), repeat(provider)))
    for rank, part in enumerate(parts):
        print(f"rank {rank}: steps {STEPS}, mean temperature {sum(part) / len(part):.2f}")

    rod = torch.zeros(2, NRANKS * CELLS + 2, dtype=torch.float64)
    rod[:, 0] = HOT
    for step in range(STEPS):
        update(rod[step % 2], rod[(step + 1) % 2])
    together = torch.tensor(parts, dtype=torch.float64).flatten()
    difference = (together - rod[STEPS % 2, 1:-1]).abs().max().item()
    print(f"largest difference from one rank alone: {difference}")


if __name__ == "__main__":
    main()
