"""A step with three common faults, and without: docs/howto/measure-overlap.md explains each.

Run: python examples/lab/own_step.py

The backward pass of four layers runs elsewhere, as on a GPU, while their gradients are summed. With
one event after the last layer, nothing can overlap. Nor can it if both use one stream, or if a call
that blocks the host is between them. With an event after each layer, only the sum of the last
gradient is exposed. --plot FILE draws the lanes.

Prints a table, with the columns:
step  T_compute  T_comm  T_both  exposed  hidden  bound  slower  verdict
"""

import numpy as np

from pynccl import nccl
from pynccl.tools import lab

LAYERS = 4
COUNT = 1 << 20  # of the gradient of a layer: 4 MiB
SECONDS = 0.003  # of the backward pass of a layer


def measure(comm: nccl.Communicator) -> list[lab.Row]:
    gradients = np.zeros((LAYERS, COUNT), np.float32)
    ready = [nccl.Event(comm.provider) for _ in range(LAYERS)]
    streams = nccl.Stream(comm.provider), nccl.Stream(comm.provider)

    def backward(stream: nccl.Stream) -> None:
        for event in ready:
            lab.Sleep(SECONDS)(stream)
            event.record(stream)

    def backward_that_blocks(stream: nccl.Stream) -> None:
        backward(stream)
        stream.synchronize()

    def reduce_after_all(stream: nccl.Stream) -> None:
        stream.wait(ready[-1])
        comm.all_reduce(gradients, stream=stream)

    def reduce_each(stream: nccl.Stream) -> None:
        for event, gradient in zip(ready, gradients, strict=True):
            stream.wait(event)
            comm.all_reduce(gradient, stream=stream)

    steps = {
        "one event": (backward, reduce_after_all, streams),
        "one stream": (backward, reduce_each, streams[:1] * 2),
        "blocking call": (backward_that_blocks, reduce_each, streams),
        "an event per layer": (backward, reduce_each, streams),
    }
    rows = []
    for name, (compute, communicate, (first, second)) in steps.items():
        row = lab.overlap(
            compute,
            communicate,
            comm=comm,
            compute_stream=first,
            communication_stream=second,
            until_certain=True,
            setting={"step": name},
        )
        rows.append(row)
        gradients.fill(comm.rank + 1.0)  # one more step, checked
        compute(first)
        communicate(second)
        for stream in streams:
            stream.synchronize()
        assert np.all(gradients == comm.nranks * (comm.nranks + 1) / 2), gradients
    return rows


if __name__ == "__main__":
    lab.script(measure)
