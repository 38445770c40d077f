"""Gather: one rank gets every rank's tensor, in a list.

    python examples/torch_course/gather.py

The reverse of scatter: (n - 1) / n of the result's bytes arrive at the destination, in n - 1
messages.

Prints:
    rank 0: [[0, 0], [1, 1], [2, 4], [3, 9]]
    rank 1: None
    rank 2: None
    rank 3: None
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.tensor([rank, rank * rank], device=device())
    every = [torch.empty_like(own) for _ in range(size)] if rank == 0 else None
    dist.gather(own, every, dst=0)
    say([tensor.tolist() for tensor in every] if every else None)


if __name__ == "__main__":
    run(main)
