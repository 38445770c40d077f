"""Shared helpers of the course: starting ranks, choosing a device, printing in order.

Each script defines ``main()``, which every rank runs, and calls ``run(main)``. Started by Python,
it starts its own ranks; started by torchrun, it is one of them:

    python examples/torch_course/broadcast.py
    torchrun --nproc-per-node=4 examples/torch_course/broadcast.py
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch

import pynccl as dist

RANKS = 4


def run(main: Callable[[], None], ranks: int = RANKS) -> None:
    """Run a function on every rank."""
    if "RANK" in os.environ:
        dist.init_process_group()
        main()
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/store"
        # Without GPUs the ranks can be forked, which saves importing torch in each.
        method = "spawn" if torch.cuda.is_available() else "fork"
        torch.multiprocessing.start_processes(
            _one_rank, (main, ranks, url), ranks, start_method=method
        )


def _one_rank(rank: int, main: Callable[[], None], ranks: int, url: str) -> None:
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(init_method=url, rank=rank, world_size=ranks)
    main()
    dist.destroy_process_group()


def device() -> torch.device:
    """The GPU of this rank, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def say(text: object) -> None:
    """Print a line for every rank, in the order of ranks. All ranks must call it."""
    lines = [""] * dist.get_world_size()
    dist.all_gather_object(lines, str(text))
    if dist.get_rank() == 0:
        for rank, line in enumerate(lines):
            print(f"rank {rank}: {line}", flush=True)
