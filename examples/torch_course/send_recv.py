"""Point to point, blocking: a token is passed around.

    python examples/torch_course/send_recv.py

Rank 0 sends to 1, 1 adds its rank and sends to 2, and so on back to 0. Each step waits for the
previous one: with n ranks it takes n steps, in each of which one message of the tensor's size
moves. A rank that both sends and receives decides which comes first. If all ranks sent first, large
messages would wait for receives that are never posted. isend and batches solve this.

Prints:
    rank 0: the token came back as 6
    rank 1: passed it on as 1
    rank 2: passed it on as 3
    rank 3: passed it on as 6
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    token = torch.zeros(1, dtype=torch.int64, device=device())
    if rank == 0:
        dist.send(token, dst=1)
        dist.recv(token, src=size - 1)
        say(f"the token came back as {token.item()}")
    else:
        dist.recv(token, src=rank - 1)
        token += rank
        dist.send(token, dst=(rank + 1) % size)
        say(f"passed it on as {token.item()}")


if __name__ == "__main__":
    run(main)
