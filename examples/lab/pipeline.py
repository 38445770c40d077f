"""Pipeline parallelism: a stage receives the next microbatch while it computes the current one.

Run: python examples/lab/pipeline.py

Each rank is a stage: it receives activations from the previous rank, computes, and sends to the
next rank. In the sequential schedule, ordered by events, a stage receives a microbatch only after
it has sent the previous one. In the overlapped schedule it receives the next one while it computes,
and a send follows its compute. The last stage begins when the first microbatch has passed through
all others, which no overlap hides: the pipeline's bubble. Each case is measured with products on
the cores that the communication needs too, and with a compute that takes the same time elsewhere,
like a GPU's.

Prints a table, with the columns:
schedule    compute  T_compute  T_comm  T_both  exposed  hidden  bound  slower  verdict
"""

import functools

import torch

from pynccl import nccl
from pynccl.tools import lab

MICROBATCHES = 8
ROWS = COLUMNS = 1024  # of the activations: 4 MiB
INNER = 64
SECONDS = 0.003  # of a microbatch, if it is computed elsewhere


def measure(comm: nccl.Communicator) -> list[lab.Row]:
    return [
        _measure(comm, overlapped, on_cores)
        for overlapped in (False, True)
        for on_cores in (True, False)
    ]


def _measure(comm: nccl.Communicator, overlapped: bool, on_cores: bool) -> lab.Row:
    zeros = functools.partial(lab.zeros, comm)
    received = zeros(MICROBATCHES, ROWS, COLUMNS)
    a, b = zeros(ROWS, INNER), zeros(INNER, COLUMNS)
    a.fill_(1.0)
    b.fill_(1.0)
    out = zeros(MICROBATCHES, ROWS, COLUMNS)
    arrived, computed = ([nccl.Event(comm.provider) for _ in range(MICROBATCHES)] for _ in range(2))
    first, last = comm.rank == 0, comm.rank == comm.nranks - 1

    def receive(stream: nccl.Stream, index: int) -> None:
        if not first:
            comm.recv(received[index], comm.rank - 1, stream=stream)

    def send(stream: nccl.Stream, index: int) -> None:
        if not last:
            comm.send(out[index], comm.rank + 1, stream=stream)

    def forward(stream: nccl.Stream, index: int) -> None:
        if on_cores:  # what came, and a product
            product = functools.partial(torch.addmm, received[index], a, b, out=out[index])
            lab.enqueue(stream, product)
        else:
            lab.Sleep(SECONDS)(stream)

    def compute(stream: nccl.Stream) -> None:
        for index in range(MICROBATCHES):
            forward(stream, index)

    def communicate(stream: nccl.Stream) -> None:
        for index in range(MICROBATCHES):
            receive(stream, index)
            send(stream, index)

    def together(on_compute: nccl.Stream, on_communication: nccl.Stream) -> None:
        receive(on_communication, 0)
        arrived[0].record(on_communication)
        for index in range(MICROBATCHES):
            if overlapped and index + 1 < MICROBATCHES:
                receive(on_communication, index + 1)
                arrived[index + 1].record(on_communication)
            on_compute.wait(arrived[index])
            forward(on_compute, index)
            computed[index].record(on_compute)
            on_communication.wait(computed[index])
            send(on_communication, index)
            if not overlapped and index + 1 < MICROBATCHES:
                receive(on_communication, index + 1)
                arrived[index + 1].record(on_communication)

    setting = {
        "schedule": "overlapped" if overlapped else "in turn",
        "compute": "on cores" if on_cores else "elsewhere",
    }
    row = lab.overlap(
        compute, communicate, comm=comm, together=together, until_certain=True, setting=setting
    )
    if on_cores:  # one more step, checked
        streams = nccl.Stream(comm.provider), nccl.Stream(comm.provider)
        together(*streams)
        for stream in streams:
            stream.synchronize()
        expected = INNER * (comm.rank + 1)
        assert torch.all(out == expected), (out, expected)
    return row


if __name__ == "__main__":
    lab.script(measure)
