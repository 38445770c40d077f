"""Proves that point-to-point operations need only the two ranks: in a chain, ranks receive, forward
and leave. A rank or store that has gone is an immediate error.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from tests.support.commands import free_port
from tests.support.in_world import init_on_host
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

REPEATS = 20 if FULL else 3
COUNTS = (3, 70_000)  # elements: within a message's buffer, and beyond


def _wait_until_closed(url: str) -> None:
    """Wait until no process listens at the address of a store."""
    host, port = url.removeprefix("tcp://").split(":")
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            return
        assert time.monotonic() < deadline, f"the store at {url} is still there"
        time.sleep(0.01)


def _relay(rank: Rank, url: str, asynchronous: bool) -> float:
    """The first rank sends; each other rank receives from its predecessor, forwards, and leaves.

    The store of rank 0 is closed before rank 1 sends.
    """
    dist = init_on_host(rank, url, timeout=timedelta(seconds=20))
    tensors = [torch.full((count,), -1.0) for count in COUNTS]

    def transfer(sends: bool, peer: int) -> None:
        for tensor in tensors:
            if asynchronous:
                (dist.isend if sends else dist.irecv)(tensor, peer).wait()
            else:
                (dist.send if sends else dist.recv)(tensor, peer)

    if rank.rank == 0:
        for tensor in tensors:
            tensor.fill_(7)
    else:
        transfer(False, rank.rank - 1)
        _wait_until_closed(url)
    if rank.rank < rank.nranks - 1:
        transfer(True, rank.rank + 1)
    dist.destroy_process_group()
    return float(sum(tensor.sum() for tensor in tensors))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["send", "isend"])
@pytest.mark.parametrize("nranks", [3, 4, 8] if FULL else [3])
def test_relay(launch: Launcher, nranks: int, asynchronous: bool) -> None:
    """The store of rank 0 is gone when rank 1 sends, in the first case with its process."""
    for repeat in range(REPEATS):
        url = f"tcp://127.0.0.1:{free_port()}"
        fresh = repeat == 0
        values = launch(nranks, _relay, url, asynchronous, fresh=fresh)
        assert values == [7.0 * sum(COUNTS)] * nranks


@pytest.mark.parametrize("sends", [False, True])
@on_ranks(2)
def test_a_rank_that_left_is_an_immediate_error(
    dist: Any, rank: int, size: int, sends: bool
) -> None:
    """Rank 0 waits for rank 1, which leaves without a transfer."""
    dist.barrier()
    if rank == 1:
        time.sleep(0.6)  # rank 0 waits already
        return
    started = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="rank 1 has died or has left the job"):
        (dist.send if sends else dist.recv)(torch.empty(1), 1)
    with pytest.raises(dist.DistBackendError, match="rank 1 has died"):
        (dist.isend if sends else dist.irecv)(torch.empty(1), 1).wait()
    assert time.monotonic() - started < 20  # the timeout is 30 s


def _without_the_store(rank: Rank, url: str) -> None:
    """Ranks 1 and 2 create a group after rank 0 has left with the store."""
    dist = init_on_host(rank, url, timeout=timedelta(seconds=20))
    dist.barrier()
    if rank.rank:
        _wait_until_closed(url)
        started = time.monotonic()
        address = url.removeprefix("tcp://")
        with pytest.raises(dist.DistNetworkError, match=f"the job's store at {address} is gone"):
            dist.new_group([1, 2], use_local_synchronization=True)
        assert time.monotonic() - started < 15  # the timeout is 20 s
        tensor = torch.full((2,), float(rank.rank))
        peer = 3 - rank.rank
        sending = dist.isend(tensor, peer)
        received = torch.empty(2)
        dist.recv(received, peer)
        sending.wait()
        assert received.tolist() == [peer] * 2
    dist.destroy_process_group()


def test_a_store_that_is_gone_is_named(launch: Launcher) -> None:
    launch(3, _without_the_store, f"tcp://127.0.0.1:{free_port()}")


@on_ranks(*([2, 5, 8] if FULL else [5]))
def test_all_pairs_connect_at_once(dist: Any, rank: int, size: int) -> None:
    """Many pairs connect at the same time."""
    others = [peer for peer in range(size) if peer != rank]
    inbox = {peer: torch.empty(3) for peer in others}
    works = [dist.irecv(inbox[peer], peer) for peer in others]
    works += [dist.isend(torch.full((3,), float(rank)), peer) for peer in reversed(others)]
    for work in works:
        work.wait()
    assert all((inbox[peer] == peer).all() for peer in others)
