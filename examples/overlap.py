"""Communication behind computation: two streams, ordered by events.

Run: python examples/overlap.py

As in a backward pass, gradient buckets are computed one after the other on one stream. Each is
summed over the ranks on a second stream as soon as it is complete, while the next one is computed.
An event after each bucket delays only its all_reduce. B buckets of N bytes take B all_reduce of
2(n-1) steps and 2(n-1)/n N bytes per rank; only the time of the last one is exposed, if a bucket
takes longer to compute than to sum. On CPUs a stream is a queue with its own thread, on GPUs a CUDA
stream.

Prints:
rank 0: buckets [3.0, 6.0, 9.0, 12.0]
rank 1: buckets [3.0, 6.0, 9.0, 12.0]
"""

import functools
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

import torch

from pynccl import nccl
from pynccl.libraries import default_provider

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 2
BUCKETS = 4
SIDE = 256


def enqueue(stream: nccl.Stream, function: Callable[[], object], device: torch.device) -> None:
    """Run a torch function on a pynccl stream."""
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle, device)):
            function()
    else:
        stream.launch(function)


def compute(bucket: torch.Tensor, weights: torch.Tensor, scale: float) -> None:
    """Fill a bucket with rank-dependent values, using a matrix product."""
    torch.mm(weights, weights, out=bucket)
    bucket.mul_(scale / SIDE)


def run(rank: int, unique_id: nccl.UniqueId, provider: str) -> str:
    device = torch.device("cpu")
    if provider == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    with nccl.Communicator(NRANKS, unique_id, rank, provider=provider, device=device) as comm:
        weights = torch.ones(SIDE, SIDE, device=device)
        buckets = [torch.empty(SIDE, SIDE, device=device) for _ in range(BUCKETS)]
        if device.type == "cuda":
            torch.cuda.synchronize()  # the weights are produced on torch's own stream
        compute_stream = nccl.Stream(provider, device=device)
        comm_stream = nccl.Stream(provider, device=device)
        computed = [nccl.Event(provider, device=device) for _ in buckets]

        for i, bucket in enumerate(buckets):
            fill = functools.partial(compute, bucket, weights, (i + 1.0) * (rank + 1))
            enqueue(compute_stream, fill, device)
            computed[i].record(compute_stream)
            comm_stream.wait(computed[i])
            comm.all_reduce(bucket, stream=comm_stream)

        comm_stream.synchronize()  # so far the host has only enqueued
        return f"rank {rank}: buckets {[bucket.mean().item() for bucket in buckets]}"


def main() -> None:
    provider = default_provider()
    unique_id = nccl.get_unique_id(provider)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["torch"])  # once, for all ranks
    with ProcessPoolExecutor(NRANKS, mp_context=forks) as processes:
        for line in processes.map(run, range(NRANKS), repeat(unique_id), repeat(provider)):
            print(line)


if __name__ == "__main__":
    main()
