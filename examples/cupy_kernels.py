"""A CuPy RawKernel, a collective and another kernel on one stream, captured as a graph.

Run: python examples/cupy_kernels.py

Each rank scales its array, all of them sum, and each applies a bias and a ReLU. The three run in
stream order: nothing between them waits, and no event is recorded. The sequence is captured once
and then replayed with one launch. Per rank and step, 2(n-1)/n N bytes are transferred, and each
kernel reads and writes N bytes. CuPy does not support CPUs: there the same steps run on NumPy
arrays, with NumPy in place of the two kernels.

Prints:
rank 0 of 2: relu(sum of scaled arrays - 3) is correct in 3 steps
rank 1 of 2: relu(sum of scaled arrays - 3) is correct in 3 steps
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pynccl import nccl
from pynccl.libraries import default_provider
from pynccl.testing import Rank, launch

if TYPE_CHECKING:
    import cupy

# Lets ranks share a GPU if there are fewer GPUs than ranks (NCCL 2.30 and newer).
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")

NRANKS = 2
COUNT = 10_000
STEPS = 3

SOURCE = r"""
extern "C" __global__ void scale(float* data, int count, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}

extern "C" __global__ void bias_relu(float* data, int count, float bias) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = fmaxf(data[i] + bias, 0.0f);
}
"""


def make_cupy_step(
    comm: nccl.Communicator, data: "cupy.ndarray", source: "cupy.ndarray"
) -> Callable[[], None]:
    """One step from source into data, captured on its own stream; it is complete on return."""
    import cupy

    scale, bias_relu = cupy.RawKernel(SOURCE, "scale"), cupy.RawKernel(SOURCE, "bias_relu")
    blocks, threads = (COUNT + 255) // 256, 256
    count, factor = np.int32(COUNT), np.float32(0.5 * (comm.rank + 1))

    def step() -> None:
        data[...] = source
        scale((blocks,), (threads,), (data, count, factor))
        comm.all_reduce(data)  # on CuPy's current stream, like the kernels
        bias_relu((blocks,), (threads,), (data, count, np.float32(-3)))

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step()  # compiles the kernels and connects the ranks, which a capture must not contain
        stream.synchronize()
        stream.begin_capture()
        step()
        graph = stream.end_capture()

    def replay() -> None:
        graph.launch(stream)
        stream.synchronize()

    return replay


def make_numpy_step(
    comm: nccl.Communicator, data: np.ndarray, source: np.ndarray
) -> Callable[[], None]:
    def step() -> None:
        np.multiply(source, np.float32(0.5 * (comm.rank + 1)), out=data)
        comm.all_reduce(data)
        np.maximum(data - 3, 0, out=data)

    return step


def run(rank: Rank) -> str:
    comm, on_gpu = rank.comm, rank.device is not None
    if on_gpu:
        import cupy as xp

        xp.cuda.Device(rank.device).use()
    else:
        xp = np
    source, data = xp.zeros(COUNT, "float32"), xp.empty(COUNT, "float32")
    make = make_cupy_step if on_gpu else make_numpy_step
    step = make(comm, data, source)
    for i in range(STEPS):
        own = np.arange(COUNT, dtype=np.float32) % (7 + i)
        source[...] = xp.asarray(own)
        if on_gpu:
            xp.cuda.get_current_stream().synchronize()  # the graph has its own stream
        step()
        total = sum(own * np.float32(0.5 * (r + 1)) for r in range(NRANKS))
        got = data.get() if on_gpu else data
        np.testing.assert_allclose(got, np.maximum(total - 3, 0), rtol=1e-6)
    del step  # the graph must be destroyed before the communicator that it uses
    return (
        f"rank {rank.rank} of {NRANKS}: relu(sum of scaled arrays - 3) is correct in {STEPS} steps"
    )


if __name__ == "__main__":
    for line in launch(NRANKS, run, provider=default_provider()):
        print(line)
