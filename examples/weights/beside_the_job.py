"""Weights by hand: broadcasts in a group of a trainer and two engines, beside their own groups.

Run: python examples/weights/beside_the_job.py

The trainer has a default group of torch.distributed, and the two engines have another one, as set
up by their launchers. pynccl's group of all three has its own store and ranks, and each parameter
is broadcast in it. pynccl.weights does the same with names, checksums and commits, and does not
require agreement on shapes, dtypes or their order.

Prints:
engine 1: all equal: True
engine 2: all equal: True
"""

import multiprocessing
import tempfile

import torch
import torch.distributed

import pynccl

SHAPES = {"embedding": (100, 16), "bias": (16,)}


def join(folder: str, rank: int) -> None:
    """Create the default group of the trainer (rank 0) or of the engines, and the group of all."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{'trainer' if rank == 0 else 'engines'}",
        rank=max(rank - 1, 0),
        world_size=1 if rank == 0 else 2,
    )
    pynccl.init_process_group(
        "host",
        init_method=f"file://{folder}/weights",
        rank=rank,
        world_size=3,
        group_name="weight_update",
    )


def work(folder: str, rank: int, out: "multiprocessing.Queue[str]") -> None:
    join(folder, rank)
    weights = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    if rank == 0:
        for weight in weights.values():
            weight.fill_(3.0)
    for weight in weights.values():
        pynccl.broadcast(weight, src=0)
    if rank > 0:
        # The engines' own group is unaffected.
        torch.distributed.barrier()
        equal = all(bool((weight == 3.0).all()) for weight in weights.values())
        out.put(f"engine {rank}: all equal: {equal}")
    pynccl.destroy_process_group()
    torch.distributed.destroy_process_group()


def main() -> None:
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch"])  # once, for all ranks
    out = forks.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [forks.Process(target=work, args=(folder, rank, out)) for rank in range(3)]
        for process in processes:
            process.start()
        texts = sorted(out.get(timeout=60) for _ in range(2))
        for process in processes:
            process.join()
    print("\n".join(texts))


if __name__ == "__main__":
    main()
