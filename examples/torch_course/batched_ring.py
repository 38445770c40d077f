"""Batched point to point: a ring exchange, and an all-gather built from it.

    python examples/torch_course/batched_ring.py

A batch is one NCCL group: its sends and receives progress together, in whatever order they are
listed. Forwarding the most recent block n - 1 times brings every block to every rank: n - 1 steps
with one block out and one in, the cost of a ring all-gather. Each link carries (n - 1) / n of the
result's bytes, regardless of the number of ranks.

Prints:
    rank 0: [0, 10, 20, 30] after 3 steps
    rank 1: [0, 10, 20, 30] after 3 steps
    rank 2: [0, 10, 20, 30] after 3 steps
    rank 3: [0, 10, 20, 30] after 3 steps
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = torch.zeros(size, dtype=torch.int64, device=device())
    blocks[rank] = 10 * rank
    for step in range(size - 1):
        outgoing = (rank - step) % size
        incoming = (rank - step - 1) % size
        batch = [
            dist.P2POp(dist.isend, blocks[outgoing : outgoing + 1], (rank + 1) % size),
            dist.P2POp(dist.irecv, blocks[incoming : incoming + 1], (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    say(f"{blocks.tolist()} after {size - 1} steps")


if __name__ == "__main__":
    run(main)
