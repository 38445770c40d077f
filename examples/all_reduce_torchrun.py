"""all_reduce in processes that torchrun starts: rendezvous as in torch.distributed.

Run: torchrun --nproc-per-node 2 examples/all_reduce_torchrun.py

torchrun gives each process its rank and the address of the store; rank 0 makes NCCL's unique id and
puts it there for the others. No process group of torch is made. Then every rank contributes a
tensor of N bytes and all get the sum. A ring algorithm takes 2(n-1) steps of N/n bytes, so each
rank sends and receives 2(n-1)/n N bytes: nearly 2N, however many ranks there are.

Prints:
rank 0 of 2: [3.0, 6.0, 9.0, 12.0]
rank 1 of 2: [3.0, 6.0, 9.0, 12.0]
"""

import os

import torch
from torch.distributed import rendezvous

from pynccl import nccl
from pynccl.libraries import default_provider

# Lets ranks share a GPU where there are fewer of them (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")


def main() -> None:
    store, rank, nranks = next(rendezvous("env://"))
    provider = default_provider()
    device = torch.device("cpu")
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if rank == 0:
        store.set("unique_id", bytes(nccl.get_unique_id(provider)))
    unique_id = nccl.UniqueId(store.get("unique_id"))

    with nccl.Communicator(nranks, unique_id, rank, provider=provider, device=device) as comm:
        tensor = torch.arange(1.0, 5.0, device=device) * (rank + 1)
        comm.all_reduce(tensor)  # on the current stream, as any operation of torch
        # One write for the whole line: the ranks share the terminal.
        print(f"rank {rank} of {nranks}: {tensor.tolist()}\n", end="", flush=True)


if __name__ == "__main__":
    main()
