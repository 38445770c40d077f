"""Ranks as threads of one process: no launcher, no pickling, one debugger for all of them.

Run: python examples/ranks_as_threads.py

Each thread has its own communicator. A call waits with the GIL released, so the other threads keep
running. Every rank contributes a block of N bytes to all_gather and receives those of all n ranks:
n-1 steps of N bytes in a ring, (n-1)N bytes received by each. On CPUs the threads read the blocks
in place.

Prints:
rank 0 gathered [0, 10, 20, 30]
rank 1 gathered [0, 10, 20, 30]
rank 2 gathered [0, 10, 20, 30]
rank 3 gathered [0, 10, 20, 30]
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import torch

from pynccl import nccl
from pynccl.libraries import default_provider

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 4


def run(rank: int, unique_id: nccl.UniqueId, provider: str) -> str:
    device, stream = torch.device("cpu"), None
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        # Ranks that share a GPU wait for each other, so each needs its own stream.
        stream = torch.cuda.Stream(device)
    with (
        torch.cuda.stream(stream),
        nccl.Communicator(NRANKS, unique_id, rank, provider=provider, device=device) as comm,
    ):
        block = torch.tensor([10 * rank], device=device)
        blocks = torch.empty(NRANKS, dtype=block.dtype, device=device)
        comm.all_gather(block, out=blocks)
        return f"rank {rank} gathered {blocks.tolist()}"


def main() -> None:
    provider = default_provider()
    unique_id = nccl.get_unique_id(provider)
    with ThreadPoolExecutor(NRANKS) as threads:
        for line in threads.map(run, range(NRANKS), repeat(unique_id), repeat(provider)):
            print(line)


if __name__ == "__main__":
    main()
