"""What the examples of this folder share: ranks, memory that all of them can access, times.

Options of every example: --ranks N, and --threads for ranks that are threads of one process.
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

# Lets ranks share a GPU where there are fewer of them (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")


class Symmetric(NamedTuple):
    """Memory of the same size on all ranks.

    Attributes:
        tensor: the own memory.
        pointers: where each rank has it, int64 on the device of the kernels.
        owner: what keeps it alive.
    """

    tensor: torch.Tensor
    pointers: torch.Tensor
    owner: object


def symmetric(comm: nccl.Communicator, shape: Sequence[int], dtype: str) -> Symmetric:
    """Allocate memory that all ranks can load and store; collective. It is zero."""
    buffer = comm.symmetric_empty(shape, dtype)
    pointers = torch.from_dlpack(buffer.window.peer_pointers()).view(torch.int64)
    memory = Symmetric(torch.from_dlpack(buffer).zero_(), pointers, buffer)
    barrier(comm, memory.tensor.device)  # nobody writes before all have their zeros
    return memory


def barrier(comm: nccl.Communicator, device: torch.device) -> None:
    """Wait until all ranks have come here and their devices have done their work."""
    word = torch.zeros(1, device=device)
    comm.all_reduce(word)
    word.item()


def median(comm: nccl.Communicator, device: torch.device, call: Callable[[], Any]) -> float:
    """Microseconds of a call, the median of several; the largest of all ranks."""
    times = []
    for _ in range(11):
        barrier(comm, device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - start) * 1e6)
    longest = torch.tensor([statistics.median(times[1:])], device=device)
    comm.all_reduce(longest, nccl.MAX)
    return longest.item()


def device_of(rank: Rank) -> torch.device:
    """The device of a rank; its stream is current where it is a GPU."""
    if rank.device is None:
        torch.set_num_threads(1)  # ranks share the processors
        return torch.device("cpu")
    device = torch.device("cuda", rank.device)
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream(device))
    return device


def run(example: Callable[[Rank], str], nranks: int, provider: str | None = None) -> None:
    """Run an example on all ranks; print what they return.

    Args:
        example: the function of a rank.
        nranks: how many ranks, where the command line does not say.
        provider: "host" or "cuda"; that of this machine by default.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=nranks)
    parser.add_argument("--threads", action="store_true")
    options = parser.parse_args()
    provider = provider or default_provider()
    lines = launch(
        options.ranks, example, provider=provider, threads=options.threads, timeout=300.0
    )
    for line in lines:
        if line:
            print(line)
