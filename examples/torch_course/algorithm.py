"""Ring or tree: choosing NCCL's algorithm.

    python examples/torch_course/algorithm.py

NCCL chooses by message size: a tree, with 2 log2(n) steps, for small messages; a ring, with 2 (n -
1) steps but all links busy all the time, for large ones. NCCL_ALGO in the environment decides for
the whole process, before the first communicator is created: here, one set of ranks is started for
each value. hostnccl has one algorithm per size and ignores it; the results are the same. From NCCL
2.31 on, a single call can choose: the methods of pynccl.nccl.Communicator take a CollConfig.

Prints:
    NCCL_ALGO=Ring
    rank 0: [10, 100]
    rank 1: [10, 100]
    rank 2: [10, 100]
    rank 3: [10, 100]
    NCCL_ALGO=Tree
    rank 0: [10, 100]
    rank 1: [10, 100]
    rank 2: [10, 100]
    rank 3: [10, 100]
"""

from __future__ import annotations

import os

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    tensor = torch.tensor([1, 10], device=device()) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    say(tensor.tolist())


if __name__ == "__main__":
    for algorithm in ("Ring", "Tree"):
        os.environ["NCCL_ALGO"] = algorithm
        print(f"NCCL_ALGO={algorithm}", flush=True)
        run(main)
