"""Proves that messages arrive over the mirror and over the backend: rings in any order
without deadlock, and batches.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from tests.support.ranks import on_ranks

LARGE = 1_000_003  # elements, far more than any buffer in between


@pytest.mark.parametrize("count", [1, LARGE])
@on_ranks(2, 4, fixture="each_world")
def test_ring_without_a_batch(dist: Any, rank: int, size: int, count: int) -> None:
    """All ranks send first, without a batch."""
    for shift in range(1, size):
        sent = torch.full((count,), float(rank))
        received = torch.empty(count)
        sending = dist.isend(sent, (rank + shift) % size)
        receiving = dist.irecv(received, (rank - shift) % size)
        assert receiving.wait()
        assert sending.wait()
        assert (received == (rank - shift) % size).all()
        assert receiving._source_rank() == (rank - shift) % size
        if sent.is_cuda:  # there wait() makes the current stream wait, not the caller
            torch.cuda.synchronize()
        assert sending.is_success()
        sending = dist.isend(sent, (rank + shift) % size)
        assert dist.recv(received.zero_(), (rank - shift) % size) == (rank - shift) % size
        assert sending.wait()
        assert (received == (rank - shift) % size).all()


@on_ranks(1, 2, 4, fixture="each_world")
def test_batch(dist: Any, rank: int, size: int) -> None:
    others = [peer for peer in range(size) if peer != rank]
    inbox = {peer: torch.empty(50_000 * (peer + 1)) for peer in others}
    operations = [dist.P2POp(dist.irecv, inbox[peer], peer) for peer in others]
    operations += [
        dist.P2POp(dist.isend, torch.full((50_000 * (rank + 1),), float(rank)), group_peer=peer)
        for peer in others
    ]
    own_in, own_out = torch.full((4,), 7.0), torch.zeros(4)
    operations.append(dist.P2POp(dist.isend, own_in, rank))
    operations.append(dist.P2POp(dist.irecv, own_out, rank))
    random.Random(rank).shuffle(operations)
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert all((inbox[peer] == peer).all() for peer in others)
    assert own_out.tolist() == own_in.tolist()
    assert "isend" in repr(operations[0]) or "irecv" in repr(operations[0])


@on_ranks(2, fixture="each_world")
def test_a_refused_batch_sends_nothing(dist: Any, rank: int, size: int) -> None:
    sent, received = torch.tensor([rank + 1.0]), torch.zeros(1)
    ops = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    column = dist.P2POp(dist.irecv, torch.empty(2, 2)[:, 0], 1 - rank)
    with pytest.raises(ValueError, match="contiguous"):
        dist.batch_isend_irecv([*ops, column])
    values = torch.tensor([float(rank)])
    dist.broadcast(values, 1)
    assert values.item() == 1
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert received.item() == 2 - rank


@on_ranks(2, fixture="host_world")
def test_two_ranks_send_small_tensors_first(dist: Any, rank: int, size: int) -> None:
    received = torch.empty(2)
    for step in range(2):
        dist.send(torch.full((2,), float(rank + step)), 1 - rank)
        dist.recv(received, 1 - rank)
        assert received.tolist() == [1.0 - rank + step] * 2


@on_ranks(3, fixture="torch_world")
def test_receives_into_one_tensor(rank: int, size: int) -> None:
    """Torch's pipelines begin this way, with a tensor whose value is unused."""
    neighbors = [(rank + 1) % size, (rank - 1) % size]
    own, received = torch.tensor([float(rank)]), torch.zeros(1)
    ops = [torch_dist.P2POp(torch_dist.irecv, received, peer) for peer in neighbors]
    ops += [torch_dist.P2POp(torch_dist.isend, own, peer) for peer in neighbors]
    for work in torch_dist.batch_isend_irecv(ops):
        work.wait()
    assert received.item() in neighbors
