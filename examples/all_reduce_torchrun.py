"""all_reduce in processes started by torchrun, with the same rendezvous as torch.distributed.

Run: torchrun --nproc-per-node 2 examples/all_reduce_torchrun.py

torchrun sets each process's rank and the address of the store, through which from_store() shares
NCCL's unique id. No torch process group is created. Every rank then contributes a tensor
of N bytes, and all of them get the sum. A ring algorithm takes 2(n-1) steps of N/n bytes, so each
rank sends and receives 2(n-1)/n N bytes: nearly 2N, regardless of the number of ranks.

Prints:
rank 0 of 2: [3.0, 6.0, 9.0, 12.0]
rank 1 of 2: [3.0, 6.0, 9.0, 12.0]
"""

import os

import torch
from torch.distributed import rendezvous

from pynccl import nccl
from pynccl.libraries import default_provider

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")


def main() -> None:
    store, rank, nranks = next(rendezvous("env://"))
    provider = default_provider()
    device = torch.device("cpu")
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    with nccl.Communicator.from_store(
        store, rank, nranks, provider=provider, device=device
    ) as comm:
        tensor = torch.arange(1.0, 5.0, device=device) * (rank + 1)
        comm.all_reduce(tensor)  # on the current stream, like any torch operation
        # A single write for the whole line: the ranks share the terminal.
        print(f"rank {rank} of {nranks}: {tensor.tolist()}\n", end="", flush=True)


if __name__ == "__main__":
    main()
