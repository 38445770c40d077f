"""Point to point, non-blocking: neighbours exchange while each computes.

    python examples/torch_course/isend_irecv.py

isend and irecv return immediately. Before the work was waited for, the sent tensor must not be
modified and the received one must not be read. All messages of the ring move at the same time: one
step, one message out and one in for each rank, regardless of the number of ranks.

Prints:
    rank 0: has [3, 3, 3], computed 0 meanwhile
    rank 1: has [0, 0, 0], computed 1 meanwhile
    rank 2: has [1, 1, 1], computed 4 meanwhile
    rank 3: has [2, 2, 2], computed 9 meanwhile
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = torch.full((3,), rank, device=device())
    received = torch.empty_like(sent)
    sending = dist.isend(sent, dst=(rank + 1) % size)
    receiving = dist.irecv(received, src=(rank - 1) % size)
    meanwhile = rank * rank
    receiving.wait()
    sending.wait()
    say(f"has {received.tolist()}, computed {meanwhile} meanwhile")


if __name__ == "__main__":
    run(main)
