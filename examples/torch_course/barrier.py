"""Barrier: no rank continues before all have called it.

    python examples/torch_course/barrier.py

An all-reduce of one element: no useful data moves, and every rank waits for the slowest. Programs
rarely need it, because each collective waits for the data it needs; here it makes a clock
comparable.

Prints:
    rank 0: went on after the last came
    rank 1: went on after the last came
    rank 2: went on after the last came
    rank 3: went on after the last came
"""

from __future__ import annotations

import time

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    time.sleep(0.05 * rank)
    came = time.monotonic()
    dist.barrier()
    went_on = time.monotonic()
    last = torch.tensor([came], dtype=torch.float64, device=device())
    dist.all_reduce(last, dist.ReduceOp.MAX)
    say("went on after the last came" if went_on >= last.item() else f"of {size}, not all had come")


if __name__ == "__main__":
    run(main)
