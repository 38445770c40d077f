"""Shared helpers of the examples in this folder: ranks, symmetric memory, timing.

Options of every example: --ranks N, and --threads to run ranks as threads of one process.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from pynccl import nccl
from pynccl.libraries import default_provider
from pynccl.testing import Rank, launch

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")


class Symmetric(NamedTuple):
    """Memory of the same size on all ranks.

    Attributes:
            tensor: this rank's memory.
            pointers: its address on each rank, int64 on the device of the kernels.
    """

    tensor: torch.Tensor
    pointers: torch.Tensor


class World:
    """One rank.

    Attributes:
        comm: the communicator.
        device: the device of its kernels.
    """

    def __init__(self, rank: Rank) -> None:
        self.comm = rank.comm
        self.device = torch.device("cpu")
        self._buffers: list[Any] = []
        if rank.device is None:
            torch.set_num_threads(1)  # ranks share the processors
        else:
            self.device = torch.device("cuda", rank.device)
            torch.cuda.set_device(self.device)
            # Ranks that share a GPU wait for each other, so each needs its own stream.
            torch.cuda.set_stream(torch.cuda.Stream(self.device))

    def symmetric(self, shape: Sequence[int], dtype: str) -> Symmetric:
        """Allocate zeroed memory that all ranks can load and store; collective.

        Raises:
            RuntimeError: the ranks cannot share memory.
        """
        buffer = self.comm.symmetric_empty(shape, dtype)
        self._buffers.append(buffer)
        pointers = torch.from_dlpack(buffer.window.peer_pointers()).view(torch.int64)
        if (pointers == 0).any():
            raise RuntimeError("NCCL cannot share the memory of these ranks: not one LSA team")
        memory = Symmetric(torch.from_dlpack(buffer).zero_(), pointers)
        self.barrier()  # no rank may write before all have their zeros
        return memory

    def barrier(self) -> None:
        """Wait until all ranks have called it and their devices have finished their work."""
        word = torch.zeros(1, device=self.device)
        self.comm.all_reduce(word)
        word.item()

    def median(self, call: Callable[[], Any]) -> float:
        """The median of ten calls in microseconds; the maximum over the ranks."""
        times = []
        for _ in range(11):  # the first compiles
            self.barrier()
            start = time.perf_counter()
            call()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times.append((time.perf_counter() - start) * 1e6)
        longest = torch.tensor([statistics.median(times[1:])], device=self.device)
        self.comm.all_reduce(longest, nccl.MAX)
        return longest.item()

    def close(self) -> None:
        """Close the memory once no tensor uses it; collective."""
        self.barrier()  # no rank closes its memory while another may still write into it
        for buffer in reversed(self._buffers):
            buffer.close()


def _run_rank(rank: Rank, example: Callable[[World], str]) -> str:
    world = World(rank)
    text = example(world)
    world.close()
    return text


def run(example: Callable[[World], str], nranks: int, provider: str | None = None) -> None:
    """Run an example on all ranks; print the result of rank 0.

    Args:
        example: the function of a rank.
        nranks: the default number of ranks.
        provider: "host" or "cuda"; that of this machine by default.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=nranks)
    parser.add_argument("--threads", action="store_true")
    options = parser.parse_args()
    results = launch(
        options.ranks,
        _run_rank,
        (example,),
        provider=provider or default_provider(),
        threads=options.threads,
        timeout=300.0,
    )
    print(results[0])


if __name__ == "__main__":
    raise SystemExit("run one of the other files of this folder")
