"""All-gather: every rank gets every rank's tensor.

    python examples/torch_course/all_gather.py

n blocks of S bytes on every rank: in a ring, n - 1 steps with one block out and one in. The list
form accepts blocks of different sizes; all_gather_single requires equal ones and writes one tensor.

Prints:
    rank 0: [0, 1, 2, 3] and [[], [1], [2, 2], [3, 3, 3]]
    rank 1: [0, 1, 2, 3] and [[], [1], [2, 2], [3, 3, 3]]
    rank 2: [0, 1, 2, 3] and [[], [1], [2, 2], [3, 3, 3]]
    rank 3: [0, 1, 2, 3] and [[], [1], [2, 2], [3, 3, 3]]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    flat = torch.empty(size, dtype=torch.int64, device=device())
    dist.all_gather_single(flat, torch.tensor([rank], device=device()))
    uneven = [torch.empty(peer, dtype=torch.int64, device=device()) for peer in range(size)]
    dist.all_gather(uneven, torch.full((rank,), rank, device=device()))
    say(f"{flat.tolist()} and {[tensor.tolist() for tensor in uneven]}")


if __name__ == "__main__":
    run(main)
