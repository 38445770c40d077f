"""All-reduce: the sum of all ranks' tensors, on every rank.

    python examples/torch_course/all_reduce.py

The collective of data-parallel training. In a ring it is a reduce-scatter followed by an
all-gather: 2 (n - 1) steps, in each of which every rank sends S / n bytes; in total 2 (n - 1) / n
times S, nearly independent of the number of ranks. In a tree it takes 2 log2(n) steps, which is
better for small messages.

Prints:
    rank 0: sum [6, 60], maximum [3, 30], mean [1.5, 15.0]
    rank 1: sum [6, 60], maximum [3, 30], mean [1.5, 15.0]
    rank 2: sum [6, 60], maximum [3, 30], mean [1.5, 15.0]
    rank 3: sum [6, 60], maximum [3, 30], mean [1.5, 15.0]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.tensor([rank, 10 * rank], device=device())
    total, largest, mean = own.clone(), own.clone(), own.float()
    dist.all_reduce(total)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    say(f"sum {total.tolist()}, maximum {largest.tolist()}, mean {mean.tolist()}")
    assert size > 1


if __name__ == "__main__":
    run(main)
