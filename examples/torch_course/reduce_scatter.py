"""Reduce-scatter: the sum of all ranks' tensors, of which each rank gets its block.

    python examples/torch_course/reduce_scatter.py

The first half of a ring all-reduce: n - 1 steps with one block of S / n bytes out and one in.
Sharded optimisers use it for gradients, because a rank needs only the sum of its own shard.

Prints:
    rank 0: [0, 0]
    rank 1: [4, 40]
    rank 2: [8, 80]
    rank 3: [12, 120]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = torch.arange(size, device=device()).repeat_interleave(2)
    blocks[1::2] *= 10
    own = torch.empty(2, dtype=torch.int64, device=device())
    dist.reduce_scatter_single(own, blocks)
    say(own.tolist())
    assert rank < size


if __name__ == "__main__":
    run(main)
