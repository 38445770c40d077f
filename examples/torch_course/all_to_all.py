"""All-to-all: every rank sends each rank its own part.

    python examples/torch_course/all_to_all.py

A transposition over ranks, as used for mixtures of experts: (n - 1) / n of S bytes leave every rank
and as many arrive, in n - 1 messages each way, all at the same time. Parts may differ in size.

Prints:
    rank 0: [0, 10, 20, 30] and [0, 10, 20, 30]
    rank 1: [1, 11, 21, 31] and [1, 1, 11, 11, 21, 21, 31, 31]
    rank 2: [2, 12, 22, 32] and [2, 2, 2, 12, 12, 12, 22, 22, 22, 32, 32, 32]
    rank 3: [3, 13, 23, 33] and [3, 3, 3, 3, 13, 13, 13, 13, 23, 23, 23, 23, 33, 33, 33, 33]
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = 10 * rank + torch.arange(size, device=device())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)

    # Rank i gets i + 1 of each number that is for it.
    sizes = [to + 1 for to in range(size)]
    many = sent.repeat_interleave(torch.tensor(sizes, device=device()))
    inbox = torch.empty((rank + 1) * size, dtype=torch.int64, device=device())
    dist.all_to_all_single(inbox, many, [rank + 1] * size, sizes)
    say(f"{received.tolist()} and {inbox.tolist()}")


if __name__ == "__main__":
    run(main)
