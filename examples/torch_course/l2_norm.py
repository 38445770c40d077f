"""The L2 norm of a vector distributed over the ranks, as used for gradient clipping.

    python examples/torch_course/l2_norm.py

Each rank sums the squares of its part. One all-reduce of one number, 8 bytes, follows; the root of
the sum is the norm of the whole vector.

Prints:
    rank 0: norm 5.4772, scaled to 1.0000
    rank 1: norm 5.4772, scaled to 1.0000
    rank 2: norm 5.4772, scaled to 1.0000
    rank 3: norm 5.4772, scaled to 1.0000
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    part = torch.tensor([float(rank + 1)], dtype=torch.float64, device=device())

    def norm() -> float:
        squares = part.square().sum().reshape(1)
        dist.all_reduce(squares)
        return squares.sqrt().item()

    before = norm()
    part /= before
    say(f"norm {before:.4f}, scaled to {norm():.4f}")
    assert size > rank


if __name__ == "__main__":
    run(main)
