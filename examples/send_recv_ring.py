"""A ring of sends and receives, fused by group(): all ranks send and receive at the same time.

Run: python examples/send_recv_ring.py

Each rank passes a tensor of N bytes to the next one, n-1 times, and adds up what it receives: a
hand-written all_reduce. Each of the n-1 steps is one NCCL group in which a rank sends N bytes and
receives N bytes at once, (n-1)N bytes in all. Without group(), every rank would wait in send() for
a rank that is itself waiting in send().

Prints:
rank 0 saw [0, 2, 1], sum 3
rank 1 saw [1, 0, 2], sum 3
rank 2 saw [2, 1, 0], sum 3
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

NRANKS = 3


def run(rank: int, unique_id: nccl.UniqueId, provider: str) -> str:
    device = torch.device("cpu")
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    following, previous = (rank + 1) % NRANKS, (rank - 1) % NRANKS
    with nccl.Communicator(NRANKS, unique_id, rank, provider=provider, device=device) as comm:
        passing = torch.full((1024,), rank, dtype=torch.int64, device=device)
        arriving = torch.empty_like(passing)
        seen = [passing[0].item()]
        total = passing.clone()
        for _ in range(NRANKS - 1):
            with nccl.group():
                comm.send(passing, following)
                comm.recv(arriving, previous)
            passing, arriving = arriving, passing
            seen.append(passing[0].item())
            total += passing
        return f"rank {rank} saw {seen}, sum {total[0].item()}"


def main() -> None:
    provider = default_provider()
    unique_id = nccl.get_unique_id(provider)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch"])  # once, for all ranks
    with ProcessPoolExecutor(NRANKS, mp_context=forks) as processes:
        for line in processes.map(run, range(NRANKS), repeat(unique_id), repeat(provider)):
            print(line)


if __name__ == "__main__":
    main()
