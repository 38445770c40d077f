"""New weights from a trainer to inference ranks, in buckets.

    python examples/torch_course/weight_buckets.py

Rank 0 trains; the others serve and need its weights. One broadcast per parameter would pay the
latency of each; one for all would need a second copy of the model. Buckets of a fixed size are a
compromise: parameters are packed into one flat buffer, sent asynchronously while the next is
packed, and unpacked on arrival. Every link carries the bytes of the model once; the extra memory is
two buckets.

Prints:
    rank 0: sent 3 buckets of at most 1024 bytes
    rank 1: received 7 parameters, all equal to the trainer's: True
    rank 2: received 7 parameters, all equal to the trainer's: True
    rank 3: received 7 parameters, all equal to the trainer's: True
"""

from __future__ import annotations

import torch
from course import device, run, say

import pynccl as dist


def split_into_buckets(tensors: list[torch.Tensor], limit: int) -> list[list[torch.Tensor]]:
    """Group tensors in order, at most limit bytes together unless one alone is larger."""
    buckets: list[list[torch.Tensor]] = [[]]
    for tensor in tensors:
        if buckets[-1] and sum(t.nbytes for t in buckets[-1]) + tensor.nbytes > limit:
            buckets.append([])
        buckets[-1].append(tensor)
    return buckets


def unpack(work: dist.Work, flat: torch.Tensor, bucket: list[torch.Tensor]) -> None:
    """Wait for a bucket and copy it to its parameters."""
    work.wait()
    for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
        tensor.copy_(part.view_as(tensor))


def main() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    shapes = [(8, 8), (8,), (16, 8), (16,), (4, 16), (4,), (200,)]
    trained = [torch.full(shape, float(number + 1)) for number, shape in enumerate(shapes)]
    model = [torch.zeros(shape, device=device()) for shape in shapes]
    if rank == 0:
        model = [tensor.to(device()) for tensor in trained]

    buckets = split_into_buckets(model, 1024)
    in_flight = []
    for bucket in buckets:
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        in_flight.append((dist.broadcast(flat, src=0, async_op=True), flat, bucket))
        if len(in_flight) > 1:
            unpack(*in_flight.pop(0))
    for entry in in_flight:
        unpack(*entry)

    if rank == 0:
        say(f"sent {len(buckets)} buckets of at most 1024 bytes")
    else:
        equal = all(torch.equal(a.cpu(), b) for a, b in zip(model, trained, strict=True))
        say(f"received {len(model)} parameters, all equal to the trainer's: {equal}")
    assert size > 1


if __name__ == "__main__":
    run(main)
