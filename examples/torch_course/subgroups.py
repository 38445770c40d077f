"""Sub-groups: tensor parallelism within pairs, data parallelism across them.

    python examples/torch_course/subgroups.py

All ranks create all groups, in the same order, including those that they do not belong to. A
collective of a group moves data among its members only; groups without common members work
concurrently.

Prints:
    rank 0: pair [0, 1] sums to 1, across [0, 2] sums to 2
    rank 1: pair [0, 1] sums to 1, across [1, 3] sums to 4
    rank 2: pair [2, 3] sums to 5, across [0, 2] sums to 2
    rank 3: pair [2, 3] sums to 5, across [1, 3] sums to 4
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pair, _ = dist.new_subgroups(2)
    columns = [list(range(start, size, 2)) for start in range(2)]
    across, _ = dist.new_subgroups_by_enumeration(columns)

    parts = []
    for name, group in (("pair", pair), ("across", across)):
        tensor = torch.tensor([rank], device=device())
        dist.all_reduce(tensor, group=group)
        parts.append(f"{name} {dist.get_process_group_ranks(group)} sums to {tensor.item()}")
    say(", ".join(parts))


if __name__ == "__main__":
    run(main)
