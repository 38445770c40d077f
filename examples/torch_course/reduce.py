"""Reduce: the sum of all ranks' tensors, on one rank.

    python examples/torch_course/reduce.py

The reverse of broadcast: S bytes flow from all ranks to the root and are added on the way. The
tensors of other ranks still hold their own contributions, which is not guaranteed.

Prints:
    rank 0: 1000
    rank 1: got 1111
    rank 2: 10
    rank 3: 1
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.tensor([10 ** (size - 1 - rank)], device=device())
    own = tensor.item()
    dist.reduce(tensor, dst=1, op=dist.ReduceOp.SUM)
    say(f"got {tensor.item()}" if rank == 1 else own)


if __name__ == "__main__":
    run(main)
