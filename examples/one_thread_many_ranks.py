"""One thread drives several ranks: init_all() creates them, group() starts them together.

Run: python examples/one_thread_many_ranks.py

This is the pattern of one process with several GPUs. A call for one rank would wait for the other
ranks, whose calls come later in the same thread; in a group, all of them are issued at once. Every
rank has n blocks of N/n bytes. reduce_scatter leaves the sum of all blocks i on rank i, and
all_gather distributes the sums to all ranks. Each half takes n-1 steps in a ring and moves (n-1)/n
N bytes per rank; together they are an all_reduce.

Prints:
rank 0 has block [60], then all: [60, 64, 68, 72]
rank 1 has block [64], then all: [60, 64, 68, 72]
rank 2 has block [68], then all: [60, 64, 68, 72]
rank 3 has block [72], then all: [60, 64, 68, 72]
"""

import os

import torch

from pynccl import nccl
from pynccl.libraries import default_provider

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 4


def main() -> None:
    comms = nccl.Communicator.init_all(NRANKS, provider=default_provider())
    on_gpu = comms[0].library.memory == "device"
    devices = [torch.device("cuda", c.device) if on_gpu else torch.device("cpu") for c in comms]
    # One stream per rank: ranks that share a GPU must not queue up behind each other.
    streams = [torch.cuda.Stream(device) if on_gpu else None for device in devices]

    tensors, blocks = [], []
    for comm, device, stream in zip(comms, devices, streams, strict=True):
        with torch.cuda.stream(stream):
            tensors.append(torch.arange(NRANKS, device=device) + 10 * comm.rank)
            blocks.append(torch.empty(1, dtype=torch.int64, device=device))

    with nccl.group():
        for comm, tensor, block, stream in zip(comms, tensors, blocks, streams, strict=True):
            comm.reduce_scatter(tensor, out=block, stream=stream)
    with nccl.group():
        for comm, tensor, block, stream in zip(comms, tensors, blocks, streams, strict=True):
            comm.all_gather(block, out=tensor, stream=stream)

    for comm, tensor, block, stream in zip(comms, tensors, blocks, streams, strict=True):
        with torch.cuda.stream(stream):
            print(f"rank {comm.rank} has block {block.tolist()}, then all: {tensor.tolist()}")
    for comm in comms:
        comm.close()


if __name__ == "__main__":
    main()
