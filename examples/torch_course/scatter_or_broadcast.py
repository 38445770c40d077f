"""Scatter versus broadcast: send each rank its part, or everything to all ranks.

    python examples/torch_course/scatter_or_broadcast.py

Rank 0 has n parts of P bytes. Scatter sends every rank P bytes: (n - 1) P leave rank 0. Broadcast
sends every rank all n parts, n P bytes each, of which a rank then reads one: n times the bytes and
n times the memory. Use broadcast for data that all ranks need, and scatter if each needs a part.

Prints:
    rank 0: scatter and broadcast agree; received 800 against 3200 bytes
    rank 1: scatter and broadcast agree; received 800 against 3200 bytes
    rank 2: scatter and broadcast agree; received 800 against 3200 bytes
    rank 3: scatter and broadcast agree; received 800 against 3200 bytes
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everything = torch.empty(size, 100, dtype=torch.float64, device=device())
    if rank == 0:
        everything[:] = torch.arange(size * 100, device=device()).reshape(size, 100)

    part = torch.empty(100, dtype=torch.float64, device=device())
    dist.scatter(part, list(everything) if rank == 0 else None, src=0)
    dist.broadcast(everything, src=0)

    agree = "agree" if torch.equal(part, everything[rank]) else "differ"
    received = f"received {part.nbytes} against {everything.nbytes} bytes"
    say(f"scatter and broadcast {agree}; {received}")


if __name__ == "__main__":
    run(main)
