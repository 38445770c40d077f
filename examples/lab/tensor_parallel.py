"""Tensor parallelism: a product is split into chunks, which are summed over the ranks one by one.

Run: python examples/lab/tensor_parallel.py

Each rank has 1/n of the columns of X and of the rows of W; X W is the sum of the ranks' products.
With one product and one all_reduce, nothing overlaps. If X is split by rows into chunks, the sum of
a chunk runs on a second stream while the next one is multiplied. All but the last can be hidden, if
a chunk takes longer to multiply than to sum. Each case is measured with products on the cores that
the communication needs too, and with a compute that takes the same time elsewhere, like a GPU's.

Prints a table, with the columns:
chunks    compute  T_compute  T_comm  T_both  exposed  hidden  bound  slower  verdict
"""

import functools

import torch

from pynccl import nccl
from pynccl.tools import lab

ROWS = COLUMNS = 2048  # of the result: 16 MiB
INNER = 128
CHUNKS = 8
SECONDS = 0.02  # of the product, if it is computed elsewhere


def measure(comm: nccl.Communicator) -> list[lab.Row]:
    return [
        _measure(comm, chunks, on_cores) for chunks in (1, CHUNKS) for on_cores in (True, False)
    ]


def _measure(comm: nccl.Communicator, chunks: int, on_cores: bool) -> lab.Row:
    zeros = functools.partial(lab.zeros, comm)
    inner = INNER // comm.nranks
    x, w, out = zeros(ROWS, inner), zeros(inner, COLUMNS), zeros(ROWS, COLUMNS)
    x.fill_(comm.rank + 1.0)
    w.fill_(1.0)
    height = ROWS // chunks
    parts = [slice(chunk * height, (chunk + 1) * height) for chunk in range(chunks)]
    ready = [nccl.Event(comm.provider) for _ in parts]

    def compute(stream: nccl.Stream) -> None:
        for part, event in zip(parts, ready, strict=True):
            if on_cores:
                product = functools.partial(torch.mm, x[part], w, out=out[part])
                lab.enqueue(stream, product)
            else:
                lab.Sleep(SECONDS / chunks)(stream)
            event.record(stream)

    def communicate(stream: nccl.Stream) -> None:
        for part, event in zip(parts, ready, strict=True):
            stream.wait(event)
            comm.all_reduce(out[part], stream=stream)

    setting = {"chunks": chunks, "compute": "on cores" if on_cores else "elsewhere"}
    row = lab.overlap(compute, communicate, comm=comm, until_certain=True, setting=setting)
    if on_cores:  # one more step, checked
        stream = nccl.Stream(comm.provider)
        compute(stream)
        communicate(stream)
        stream.synchronize()
        total = inner * comm.nranks * (comm.nranks + 1) / 2
        assert torch.all(out == total), (out, total)
    return row


if __name__ == "__main__":
    lab.script(measure)
