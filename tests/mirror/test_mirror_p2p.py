"""Proves point-to-point operations: no deadlock in any order, first use by two ranks of many,
batches, the order of messages, an omitted source.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.support import gpu
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]


def _two_of_many(dist: Any, rank: int, size: int) -> None:
    """The first operation of the group involves two ranks; the others do nothing."""
    tensor = torch.full((3,), float(rank))
    if rank == 1:
        dist.send(tensor, 3)
    elif rank == 3:
        assert dist.recv(tensor, 1) == 1
        assert tensor.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "backend", ["host", pytest.param("cpu:host,cuda:nccl", marks=pytest.mark.gpu)]
)
def test_two_of_many(world: World, backend: str) -> None:
    if backend != "host" and (reason := gpu.missing()):
        pytest.skip(reason)
    world(4, _two_of_many, init={"backend": backend})


@on_ranks(2, fixture="any_world", env={"HOSTNCCL_CONNECT": "1"})
def test_both_ranks_may_send_first(dist: Any, rank: int, size: int) -> None:
    """In hostnccl's strict mode, as in NCCL, a first message waits for the other rank's call."""
    received = torch.zeros(4)
    sends = dist.isend(torch.full((4,), rank + 1.0), 1 - rank)
    receives = dist.irecv(received, 1 - rank)
    receives.wait()
    sends.wait()
    assert sends.result() == []
    assert receives.result()[0] is received
    assert received.tolist() == [2.0 - rank] * 4


@pytest.mark.parametrize("seed", range(4))
@on_ranks(2)
def test_messages_keep_their_order(dist: Any, rank: int, size: int, seed: int) -> None:
    """Messages from one rank to another arrive in order, regardless of other operations."""
    timing = random.Random(seed * 10 + rank)
    peer = 1 - rank
    works = []
    inbox = []
    for number in range(30):
        count = [1, 100, 70_000][number % 3]
        sent = torch.full((count,), float(number))
        inbox.append(torch.empty(count))
        pair = [
            lambda sent=sent: dist.isend(sent, peer),
            lambda: dist.irecv(inbox[-1], peer),
        ]
        timing.shuffle(pair)
        works += [call() for call in pair]
        if number % 7 == 0:
            dist.all_reduce(torch.ones(1))
        if timing.random() < 0.2:
            time.sleep(timing.random() * 0.003)
    for work in works:
        work.wait()
    assert [int(t[-1]) for t in inbox] == list(range(30))


@on_ranks(2, 3)
def test_mistakes(dist: Any, rank: int, size: int) -> None:
    tensor = torch.ones(1)
    for call in (lambda: dist.send(tensor, rank), lambda: dist.recv(tensor, group_src=rank)):
        with pytest.raises(ValueError, match="should not be the same as the rank"):
            call()
    for call in (lambda: dist.isend(tensor, rank), lambda: dist.irecv(tensor, rank)):
        with pytest.raises(ValueError, match="pass both to batch_isend_irecv"):
            call()
    with pytest.raises(ValueError, match="dst: rank 99 is out of range for a group of size"):
        dist.isend(tensor, 99)
    with pytest.raises(RuntimeError, match="No backend type associated with device type meta"):
        dist.isend(tensor.to("meta"), (rank + 1) % size)
    with pytest.raises(ValueError, match="Invalid ``op``"):
        dist.P2POp(dist.broadcast, tensor, 0)
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        dist.P2POp(dist.isend, [1], 0)
    with pytest.raises(AttributeError, match="an attribute of a P2POp cannot be deleted"):
        del dist.P2POp(dist.isend, tensor, 0).tensor
    with pytest.raises(ValueError, match="Invalid ``p2p_op_list``"):
        dist.batch_isend_irecv([1])
    other = dist.new_group()
    with pytest.raises(ValueError, match="same group"):
        dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, 0), dist.P2POp(dist.isend, tensor, 0, other)]
        )
    if size > 2:
        for call in (lambda: dist.recv(tensor), lambda: dist.irecv(tensor)):
            with pytest.raises(ValueError, match="pass src or group_src"):
                call()


@on_ranks(3)
def test_any_source_in_a_group_of_two(dist: Any, rank: int, size: int) -> None:
    pg = dist.new_group([1, 2])
    if rank == 0:
        return
    tensor = torch.tensor([float(rank)])
    if rank == 1:
        dist.send(tensor, 2, group=pg)
        dist.isend(tensor, group_dst=1, group=pg).wait()
        return
    assert dist.recv(tensor, group=pg) == 1
    work = dist.irecv(tensor, group=pg)
    work.wait()
    assert work._source_rank() == 0
    assert tensor.item() == 1


@on_ranks(2)
def test_missing_peer(dist: Any, rank: int, size: int) -> None:
    short = dist.new_group()
    short.timeout = timedelta(seconds=1)
    if rank == 1:
        dist.monitored_barrier(timeout=timedelta(seconds=20))  # by the store
        dist.send(torch.ones(1), 0)
        return
    late = dist.irecv(torch.empty(1), 1)
    assert not late.is_completed()
    with pytest.raises(RuntimeError, match="Timed out waiting 100ms"):
        late.wait(timedelta(milliseconds=100))
    work = dist.irecv(torch.empty(1), 1, group=short)
    future = work.get_future()
    with pytest.raises(dist.DistBackendError, match="waiting 1 seconds for rank 1 of 2 in"):
        work.wait()
    with pytest.raises(dist.DistBackendError, match="waiting 1 seconds for rank 1 of 2 in"):
        future.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert not late.is_completed()
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    late.wait()


@on_ranks(2, fixture="any_world")
def test_future_of_a_message_before_the_ranks_connect(dist: Any, rank: int, size: int) -> None:
    if rank == 1:
        dist.monitored_barrier()  # by the store
        dist.send(torch.tensor([7.0]), 0)
        assert dist.recv(torch.empty(1), 0) == 0
        return
    received = torch.zeros(1)
    work = dist.irecv(received, 1)

    def reply(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        dist.send(received, 1)
        return future.value()

    future = work.get_future().then(reply)
    assert not future.done()
    assert work.result()[0] is received
    assert work.source_rank() == 1
    dist.monitored_barrier()
    assert future.wait()[0].item() == 7


@on_ranks(2)
def test_future_of_a_message_that_fails_after_the_ranks_connect(
    dist: Any, rank: int, size: int
) -> None:
    """Both ranks receive, and neither sends."""
    with _timeout_once_connected(dist, timedelta(seconds=1)):
        future = dist.irecv(torch.empty(1), 1 - rank).get_future()
        with pytest.raises(dist.DistBackendError, match=r"recv .*Timed out after 1 seconds"):
            future.wait()
    dist.monitored_barrier(timeout=timedelta(seconds=20))  # the other one waits a second as well


@contextlib.contextmanager
def _timeout_once_connected(dist: Any, timeout: timedelta) -> Iterator[None]:
    """Set the timeout when the communicators exist, but the group does not know them yet."""
    group = dist.group.WORLD
    create = group.make_comm_stream

    def create_before_the_change(*arguments: Any) -> Any:
        comm_stream = create(*arguments)
        dist.set_timeout(timeout)
        return comm_stream

    with patch.object(group, "make_comm_stream", create_before_the_change):
        yield


@on_ranks(2)
def test_a_timeout_that_changes_while_the_ranks_connect(dist: Any, rank: int, size: int) -> None:
    peer = 1 - rank
    with _timeout_once_connected(dist, timedelta(seconds=25)):
        works = [dist.isend(torch.ones(1), peer), dist.irecv(torch.empty(1), peer)]
        for work in works:
            work.wait()
    works = [dist.isend(torch.ones(1), peer), dist.irecv(torch.empty(1), peer)]
    for work in works:
        work.wait()
        assert work.timeout == timedelta(seconds=25)


@on_ranks(2)
def test_no_timeout(dist: Any, rank: int, size: int) -> None:
    """A timeout of zero is no limit, for connections and for the end of the groups as well."""
    dist.set_timeout(timedelta(0))
    received = torch.zeros(1)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        time.sleep(0.5)
        dist.recv(received, 0)
        assert received.item() == 1
        time.sleep(0.5)
    work = dist.all_reduce(received, async_op=True)
    dist.destroy_process_group()
    work.wait()
    assert received.item() == 1


@on_ranks(3)
def test_messages_in_a_group_after_the_ranks_were_renumbered(
    dist: Any, rank: int, size: int
) -> None:
    if rank == 0:
        return  # it leaves; the others are ranks 0 and 1 from then on
    dist.shrink_group([0])
    pair = dist.new_group([0, 1])
    tensor = torch.tensor([float(rank)])
    if rank == 1:
        dist.send(tensor, 1, group=pair)
    else:
        dist.recv(tensor, 0, group=pair)
        assert tensor.item() == 1
