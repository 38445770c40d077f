"""Data parallelism: gradient buckets are summed while the backward pass computes the next ones.

Run: python examples/lab/ddp_buckets.py

The gradients of the layers are computed one after the other on one stream. Buckets of them are
summed on a second one, each as soon as an event marks it as complete. A single bucket cannot begin
before the last layer is done, so nothing is hidden. Of n buckets, all but the last can be hidden.
Each case is measured with products on the cores that the communication needs too, and with a
compute that takes the same time elsewhere, like a GPU's. --plot FILE draws the lanes.

Prints a table, with the columns:
buckets    compute  T_compute  T_comm  T_both  exposed  hidden  bound  slower  verdict
"""

import functools

import torch

from pynccl import nccl
from pynccl.tools import lab

LAYERS = 4
ROWS = COLUMNS = 1024  # of the gradient of a layer: 4 MiB
BATCH = 64
SECONDS = 0.003  # of a layer, if it is computed elsewhere


def measure(comm: nccl.Communicator) -> list[lab.Row]:
    return [
        _measure(comm, buckets, on_cores) for buckets in (1, LAYERS) for on_cores in (True, False)
    ]


def _measure(comm: nccl.Communicator, buckets: int, on_cores: bool) -> lab.Row:
    zeros = functools.partial(lab.zeros, comm)
    gradients = zeros(LAYERS, ROWS, COLUMNS)
    error, activation = zeros(ROWS, BATCH), zeros(BATCH, COLUMNS)
    error.fill_(comm.rank + 1.0)
    activation.fill_(1.0)
    per_bucket = LAYERS // buckets
    ready = [nccl.Event(comm.provider) for _ in range(buckets)]

    def compute(stream: nccl.Stream) -> None:
        for layer in range(LAYERS):
            if on_cores:
                product = functools.partial(torch.mm, error, activation, out=gradients[layer])
                lab.enqueue(stream, product)
            else:
                lab.Sleep(SECONDS)(stream)
            if (layer + 1) % per_bucket == 0:
                ready[layer // per_bucket].record(stream)

    def communicate(stream: nccl.Stream) -> None:
        for bucket in range(buckets):
            stream.wait(ready[bucket])
            part = gradients[bucket * per_bucket : (bucket + 1) * per_bucket]
            comm.all_reduce(part, stream=stream)

    setting = {"buckets": buckets, "compute": "on cores" if on_cores else "elsewhere"}
    row = lab.overlap(compute, communicate, comm=comm, until_certain=True, setting=setting)
    if on_cores:  # one more step, checked
        with_all = nccl.Stream(comm.provider)
        compute(with_all)
        communicate(with_all)
        with_all.synchronize()
        total = BATCH * comm.nranks * (comm.nranks + 1) / 2
        assert torch.all(gradients == total), gradients
    return row


if __name__ == "__main__":
    lab.script(measure)
