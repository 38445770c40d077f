"""A softmax over a vector distributed over the ranks.

    python examples/torch_course/softmax.py

Two all-reduces of one number: the maximum, so that exp cannot overflow, and the sum. The vector
itself never moves: 2 messages of 8 bytes instead of an all-gather of everything.

Prints:
    rank 0: sums to 1.000000, differs from softmax of the whole by less than 1e-12: True
    rank 1: sums to 1.000000, differs from softmax of the whole by less than 1e-12: True
    rank 2: sums to 1.000000, differs from softmax of the whole by less than 1e-12: True
    rank 3: sums to 1.000000, differs from softmax of the whole by less than 1e-12: True
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.randn(100 * size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = whole[100 * rank : 100 * (rank + 1)].to(device())

    largest = own.max().reshape(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    exponentials = (own - largest).exp()
    total = exponentials.sum().reshape(1)
    dist.all_reduce(total)
    softmax = exponentials / total

    expected = whole.softmax(0)[100 * rank : 100 * (rank + 1)].to(device())
    close = (softmax - expected).abs().max().item() < 1e-12
    everything = softmax.sum().reshape(1)
    dist.all_reduce(everything)
    text = f"sums to {everything.item():.6f}, differs from softmax of the whole by less than 1e-12"
    say(f"{text}: {close}")


if __name__ == "__main__":
    run(main)
