"""A graph of computation, communication and a host function, captured once, launched as one call.

Run: python examples/graph_overlap.py

The capture begins on one stream: a matrix product, then an event. A second stream joins the capture
by waiting for that event, and sums the result over the ranks, beside a second product on the first
stream. The first stream then waits for the sum and adds up. Nothing runs during the capture. Each
launch runs all of it with the current contents of the input buffers, and costs the host one call.
On CPUs, the work on a stream consists of functions and the graph is hostnccl's; on GPUs, it
consists of kernels in a CUDA graph. The same calls work in a region of torch.cuda.graph.

Prints:
rank 0: results [7.0, 14.0, 21.0] from a graph of pynccl
rank 1: results [11.0, 22.0, 33.0] from a graph of pynccl
"""

import os
from collections.abc import Callable

import torch

from pynccl import nccl
from pynccl.libraries import default_provider
from pynccl.testing import Rank, launch

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 2
SIDE = 64
LAUNCHES = 3


def enqueue(stream: nccl.Stream, function: Callable[[], object], device: torch.device) -> None:
    """Run a torch function on a pynccl stream."""
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle, device)):
            function()
    else:
        stream.launch(function)


def run(rank: Rank) -> str:
    comm, provider = rank.comm, rank.provider
    device = torch.device("cpu")
    if rank.device is not None:
        device = torch.device("cuda", rank.device)
        torch.cuda.set_device(device)
    weights = torch.eye(SIDE, device=device)
    x, sent, other, result = (torch.zeros(SIDE, SIDE, device=device) for _ in range(4))
    compute = nccl.Stream(provider, device=device)
    transfer = nccl.Stream(provider, device=device)
    computed, summed = (nccl.Event(provider, device=device) for _ in range(2))
    comm.all_reduce(torch.zeros(1, device=device))  # NCCL must connect before a capture
    torch.mm(weights, x, out=sent)  # and matrix libraries must initialise
    if device.type == "cuda":
        torch.cuda.synchronize()

    def step() -> None:
        enqueue(compute, lambda: torch.mm(weights, x, out=sent), device)
        computed.record(compute)
        transfer.wait(computed)
        comm.all_reduce(sent, stream=transfer)
        enqueue(compute, lambda: torch.mul(x, 4.0, out=other), device)
        summed.record(transfer)
        compute.wait(summed)
        enqueue(compute, lambda: torch.add(sent, other, out=result), device)

    results = []
    with nccl.capture(compute) as graph:
        step()
    for turn in range(1, LAUNCHES + 1):
        x.fill_(turn * (rank.rank + 1.0))
        if device.type == "cuda":
            torch.cuda.synchronize()
        graph.launch(compute)
        compute.synchronize()
        results.append(result.mean().item())
    graph.close()

    if device.type == "cuda":  # the same, captured by torch
        by_torch = torch.cuda.CUDAGraph()
        stream = torch.cuda.ExternalStream(compute.handle, device)
        with torch.cuda.graph(by_torch, stream=stream, capture_error_mode="thread_local"):
            step()
        result.zero_()
        by_torch.replay()
        if result.mean().item() != results[-1]:
            raise RuntimeError("torch's graph computed another result")
        by_torch.reset()  # NCCL waits for all graphs of a communicator before it frees it
    return f"rank {rank.rank}: results {results} from a graph of pynccl"


if __name__ == "__main__":
    for line in launch(NRANKS, run, provider=default_provider()):
        print(line)
