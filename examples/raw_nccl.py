"""nccl.h one to one: pynccl.raw provides every function under its own name.

Run: python examples/raw_nccl.py

It serves code that is ported from C, or that needs features that the objects of pynccl.nccl do not
expose. Addresses and handles are integers, NULL is None, values that C returns through a pointer
are returned, and any result other than ncclSuccess is raised. The root's N bytes go to every rank
(ncclBroadcast: N bytes per rank, n-1 steps), then every rank gets the maximum (ncclAllReduce:
2(n-1)/n N bytes, 2(n-1) steps in a ring). Nothing is checked: a wrong address crashes the process,
as in C.

Prints:
rank 0 of 2: broadcast [1.0, 2.0, 3.0, 4.0], maximum [1.0, 20.0, 3.0, 40.0]
rank 1 of 2: broadcast [1.0, 2.0, 3.0, 4.0], maximum [1.0, 20.0, 3.0, 40.0]
"""

import os

import torch

from pynccl import raw
from pynccl.libraries import default_provider
from pynccl.testing import Rank, launch

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 2


def run(rank: Rank, unique_id: raw.UniqueId) -> str:
    lib = raw.load(rank.provider)
    device, stream = torch.device("cpu"), 0  # on CPUs stream 0 is the calling thread
    if rank.device is not None:
        device = torch.device("cuda", rank.device)
        torch.cuda.set_device(device)  # NCCL uses the thread's current device
        stream = torch.cuda.current_stream().cuda_stream

    comm = lib.ncclCommInitRank(NRANKS, unique_id, rank.rank)
    own, nranks = lib.ncclCommUserRank(comm), lib.ncclCommCount(comm)

    tensor = torch.arange(1.0, 5.0, device=device) * (1 if own == 0 else 0)
    address, count = tensor.data_ptr(), tensor.numel()
    lib.ncclBroadcast(address, address, count, raw.ncclFloat32, 0, comm, stream)
    received = tensor.tolist()

    tensor[own::2] *= 10 * own or 1
    lib.ncclAllReduce(address, address, count, raw.ncclFloat32, raw.ncclMax, comm, stream)
    maximum = tensor.tolist()

    lib.ncclCommFinalize(comm)
    lib.ncclCommDestroy(comm)
    return f"rank {own} of {nranks}: broadcast {received}, maximum {maximum}"


if __name__ == "__main__":
    provider = default_provider()
    unique_id = raw.load(provider).ncclGetUniqueId()
    for line in launch(NRANKS, run, (unique_id,), provider=provider, unique_ids=0):
        print(line)
