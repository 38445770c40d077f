"""A process group with torchrun: the launcher starts the ranks and sets their rank and world size.

    torchrun --nproc-per-node=3 examples/torch_course/torchrun.py

RANK, WORLD_SIZE, LOCAL_RANK and the store's address are in the environment, so init_process_group
needs no arguments; the same script runs on one machine or on many.

Prints:
    rank 0 of 3, number 0 on its machine
    rank 1 of 3, number 1 on its machine
    rank 2 of 3, number 2 on its machine
"""

from __future__ import annotations

import pynccl as dist

dist.init_process_group()
for turn in range(dist.get_world_size()):
    if turn == dist.get_rank():
        who = f"rank {dist.get_rank()} of {dist.get_world_size()}"
        print(f"{who}, number {dist.get_node_local_rank()} on its machine", flush=True)
    dist.barrier()
dist.destroy_process_group()
