"""Weighted sums in the reduction itself: PREMUL_SUM.

    python examples/torch_course/premul_sum.py

Each rank's tensor is multiplied by its own weight while it is summed: no separate pass over the
data, no temporary, and the bytes of a plain all-reduce. One use is the mean over unequal batches.

Prints:
    rank 0: mean over 100 samples: [1.9, 19.0]
    rank 1: mean over 100 samples: [1.9, 19.0]
    rank 2: mean over 100 samples: [1.9, 19.0]
    rank 3: mean over 100 samples: [1.9, 19.0]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    batches = torch.tensor([20, 10, 30, 40][:size])
    share = (batches[rank] / batches.sum()).item()
    gradient = torch.tensor([rank, 10 * rank], dtype=torch.float64, device=device())
    dist.all_reduce(gradient, dist._make_nccl_premul_sum(share))
    values = [round(value, 6) for value in gradient.tolist()]
    say(f"mean over {batches.sum().item()} samples: {values}")


if __name__ == "__main__":
    run(main)
