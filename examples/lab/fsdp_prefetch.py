"""Sharded parameters: the next layer's all_gather runs while this layer is computed.

Run: python examples/lab/fsdp_prefetch.py

Each rank holds 1/n of every layer's weights. A layer needs all of them: an all_gather on a second
stream, then a product. There is memory for two layers, and there are events in both directions: the
product waits for its weights, and a gather waits until the product that used its memory is done.
Without prefetch, the gather of a layer waits for the previous layer: nothing is hidden, except by
noise. With prefetch, all but the first can be hidden. Each case is measured with products on the
cores that the communication needs too, and with a compute that takes the same time elsewhere, like
a GPU's.

Prints a table, with the columns:
prefetch    compute  T_compute  T_comm  T_both  exposed  hidden  bound  slower  verdict
"""

import functools

import torch

from pynccl import nccl
from pynccl.tools import lab

LAYERS = 4
SIDE = 1024  # of the weights of a layer: 4 MiB
BATCH = 64
SECONDS = 0.003  # of a layer, if it is computed elsewhere


def measure(comm: nccl.Communicator) -> list[lab.Row]:
    return [_measure(comm, prefetch, on_cores) for prefetch in (0, 1) for on_cores in (True, False)]


def _measure(comm: nccl.Communicator, prefetch: int, on_cores: bool) -> lab.Row:
    zeros = functools.partial(lab.zeros, comm)
    shards = zeros(LAYERS, SIDE // comm.nranks, SIDE)
    weights = zeros(2, SIDE // comm.nranks * comm.nranks, SIDE)
    activation, out = zeros(BATCH, weights.shape[1]), zeros(LAYERS, BATCH, SIDE)
    activation.fill_(1.0)
    for layer in range(LAYERS):
        shards[layer].fill_(comm.rank + layer + 1.0)
    gathered, used = ([nccl.Event(comm.provider) for _ in range(LAYERS)] for _ in range(2))

    def gather(stream: nccl.Stream, layer: int) -> None:
        comm.all_gather(shards[layer], out=weights[layer % 2], stream=stream)

    def forward(stream: nccl.Stream, layer: int) -> None:
        if on_cores:
            product = functools.partial(torch.mm, activation, weights[layer % 2], out=out[layer])
            lab.enqueue(stream, product)
        else:
            lab.Sleep(SECONDS)(stream)

    def compute(stream: nccl.Stream) -> None:
        for layer in range(LAYERS):
            forward(stream, layer)

    def communicate(stream: nccl.Stream) -> None:
        for layer in range(LAYERS):
            gather(stream, layer)

    def together(on_compute: nccl.Stream, on_communication: nccl.Stream) -> None:
        for layer in range(LAYERS):
            # With one layer ahead, the gather waits for the layer that used its memory.
            if layer > prefetch:
                on_communication.wait(used[layer - 1 - prefetch])
            gather(on_communication, layer)
            gathered[layer].record(on_communication)
            on_compute.wait(gathered[layer])
            forward(on_compute, layer)
            used[layer].record(on_compute)

    setting = {"prefetch": prefetch, "compute": "on cores" if on_cores else "elsewhere"}
    row = lab.overlap(
        compute, communicate, comm=comm, together=together, until_certain=True, setting=setting
    )
    if on_cores:  # one more step, checked
        streams = nccl.Stream(comm.provider), nccl.Stream(comm.provider)
        together(*streams)
        for stream in streams:
            stream.synchronize()
        rows = SIDE // comm.nranks
        for layer in range(LAYERS):
            total = rows * sum(rank + layer + 1.0 for rank in range(comm.nranks))
            assert torch.all(out[layer] == total), (layer, out[layer], total)
    return row


if __name__ == "__main__":
    lab.script(measure)
