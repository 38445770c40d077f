"""Kernels that use every function of pynccl.device.triton, to be compiled only."""

from __future__ import annotations

import triton
import triton.language as tl

from pynccl.device import triton as peers
from pynccl.device.triton import nccl


@triton.jit
def every_function(pointers, signals, out, counter, rank, nranks, count, BLOCK: tl.constexpr):
    """With addresses."""
    program = tl.program_id(0)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    peers.barrier(signals, rank, nranks, program, 8)
    total = peers.load(pointers, rank, offsets, tl.float32, inside, 0.0)
    total += tl.load(peers.peer_pointer(pointers, 0, tl.float32) + offsets)
    total += tl.load(peers.pointer(tl.load(pointers), tl.float32, 4) + offsets)
    peers.store(pointers, 1, offsets, total, tl.float32, inside)
    peers.put_signal(pointers, signals, 0, offsets, total, tl.float32, 1)
    seen = peers.wait(signals, rank, 1, 1, 100)
    peers.signal(signals, 0, 2, seen, "set")
    tl.store(out + offsets, total)
    if peers.arrive_last(counter, tl.num_programs(0)):
        peers.signal(signals, 0, 3)


@triton.jit
def every_function_of_nccl(window, comm, out, buffer, BLOCK: tl.constexpr):
    """With windows and device communicators."""
    offsets = tl.arange(0, BLOCK)
    nccl.lsa_barrier(comm, buffer)
    total = tl.load(nccl.local_pointer(window, 0, tl.float32) + offsets)
    for peer in range(nccl.nranks(comm)):
        total += tl.load(nccl.peer_pointer(window, 64, peer, tl.float32) + offsets)
    for peer in range(nccl.lsa_size(comm)):
        total += tl.load(nccl.lsa_pointer(window, 0, peer, tl.float32) + offsets)
    total += tl.load(nccl.resource_pointer(comm, buffer, 0, tl.float32) + offsets)
    tl.store(out + offsets, total + nccl.rank(comm))
    tl.store(nccl.lsa_multimem_pointer(window, 0, comm, tl.float32) + offsets, total)
