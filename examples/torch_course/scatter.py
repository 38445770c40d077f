"""Scatter: each rank gets its part of one rank's list.

    python examples/torch_course/scatter.py

The root sends a different S / n bytes to each rank: (n - 1) / n times S leave it, in n - 1
messages.

Prints:
    rank 0: [0, 0]
    rank 1: [1, 10]
    rank 2: [2, 20]
    rank 3: [3, 30]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    part = torch.empty(2, dtype=torch.int64, device=device())
    parts = None
    if rank == 0:
        parts = [torch.tensor([to, 10 * to], device=device()) for to in range(size)]
    dist.scatter(part, parts, src=0)
    say(part.tolist())


if __name__ == "__main__":
    run(main)
