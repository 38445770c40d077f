"""A Triton kernel, a collective and another kernel on one stream; on a GPU captured as a graph.

Run: python examples/triton_kernels.py

Each rank scales its tensor, all of them sum, and each applies a bias and a ReLU. The three run in
stream order: nothing between them waits, and no event is recorded. On a GPU, the sequence is
captured once and then replayed with one launch. Per rank and step, 2(n-1)/n N bytes are
transferred, and each kernel reads and writes N bytes. On CPUs, Triton's interpreter runs the same
kernels on CPU tensors, and the calls go to hostnccl.

Prints:
rank 0 of 2: relu(sum of scaled tensors - 3) is correct in 3 steps
rank 1 of 2: relu(sum of scaled tensors - 3) is correct in 3 steps
"""

import os
from collections.abc import Callable

import numpy as np
import torch

from pynccl import nccl
from pynccl.libraries import default_provider
from pynccl.testing import Rank, launch

if default_provider() == "host":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
import triton
import triton.language as tl

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 2
COUNT = 10_000
STEPS = 3
BLOCK = 1024


@triton.jit
def scale_kernel(data, count, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    """Scale in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(data + offsets, tl.load(data + offsets, mask=inside) * scale, mask=inside)


@triton.jit
def bias_relu_kernel(data, count, bias, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    """Apply the bias and a ReLU in place."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    value = tl.load(data + offsets, mask=inside) + bias
    tl.store(data + offsets, tl.maximum(value, 0.0), mask=inside)


def make_step(
    comm: nccl.Communicator, data: torch.Tensor, source: torch.Tensor
) -> Callable[[], None]:
    """One step from source into data, on the current stream."""
    grid = (triton.cdiv(data.numel(), BLOCK),)

    def step() -> None:
        data.copy_(source)
        scale_kernel[grid](data, data.numel(), 0.5 * (comm.rank + 1), BLOCK)
        comm.all_reduce(data)
        bias_relu_kernel[grid](data, data.numel(), -3.0, BLOCK)

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Capture the step as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()  # compiles the kernels and connects the ranks, which a capture must not contain
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def run(rank: Rank) -> str:
    comm, device = rank.comm, torch.device("cpu")
    if rank.device is not None:
        device = torch.device("cuda", rank.device)
        torch.cuda.set_device(device)
    source = torch.zeros(COUNT, device=device)
    data = torch.empty_like(source)
    step = make_step(comm, data, source)
    if rank.device is not None:
        step = captured(step)
    for i in range(STEPS):
        own = np.arange(COUNT, dtype=np.float32) % (7 + i)
        source.copy_(torch.from_numpy(own))
        step()
        total = sum(own * np.float32(0.5 * (r + 1)) for r in range(NRANKS))
        np.testing.assert_allclose(data.cpu().numpy(), np.maximum(total - 3, 0), rtol=1e-6)
    del step  # the graph must be destroyed before the communicator that it uses
    return (
        f"rank {rank.rank} of {NRANKS}: relu(sum of scaled tensors - 3) is correct in {STEPS} steps"
    )


if __name__ == "__main__":
    for line in launch(NRANKS, run, provider=default_provider()):
        print(line)
