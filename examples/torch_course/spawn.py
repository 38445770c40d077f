"""A process group with mp.spawn: one script starts all ranks of one machine.

    python examples/torch_course/spawn.py

Every process gets its number as the first argument. The ranks meet at a TCP address (env://): rank
0 serves the store, the others connect. Only addresses are exchanged there; after that, ranks
communicate directly.

Prints:
    rank 0 of 2 over host
    rank 1 of 2 over host
"""

from __future__ import annotations

import os
import socket

import torch

import pynccl as dist


def main(rank: int, world_size: int, port: int) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("host", rank=rank, world_size=world_size)
    for turn in range(world_size):
        if turn == rank:
            print(
                f"rank {dist.get_rank()} of {dist.get_world_size()} over {dist.get_backend()}",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    torch.multiprocessing.spawn(main, args=(2, free_port), nprocs=2)
