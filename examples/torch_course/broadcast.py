"""Broadcast: one rank's tensor to all ranks.

    python examples/torch_course/broadcast.py

The root's S bytes end up on every rank. In a pipeline along a ring, every rank forwards what it
receives in small chunks: about S bytes over each link, and as many steps as chunks and ranks
together. In a tree it takes log2(n) steps, which is better for small messages.

Prints:
    rank 0: [2, 20]
    rank 1: [2, 20]
    rank 2: [2, 20]
    rank 3: [2, 20]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.tensor([rank, 10 * rank], device=device())
    dist.broadcast(tensor, src=2)
    say(tensor.tolist())
    assert size > 2


if __name__ == "__main__":
    run(main)
