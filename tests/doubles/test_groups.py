"""Creation and destruction of GPU process groups, on the double.

Point-to-point communicators connect in the background. Work on a GPU finishes before its group is
freed, in the right order.
"""

# ruff: noqa: ANN401 - the module pynccl is an argument

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import library
from tests.support.blocking import wait_until
from tests.support.calls import python_calls
from tests.support.in_world import run_in_world, world_runner
from tests.support.launcher import Launcher
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]

INIT = "ncclCommInitRankConfig"


@pytest.fixture
def world(launch: Launcher, tmp_path: Path) -> World:
    """Run ``function(dist, rank, size, *args)`` on every rank, with GPUs."""
    return world_runner(launch, tmp_path, run_in_world, provider="cuda")


def _held() -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Keep the current stream busy: see library.held()."""
    import torch

    return library.held(torch.cuda.current_stream().cuda_stream, torch.cuda.current_device())


@pytest.mark.parametrize("async_op", [False, True])
@on_ranks(2, fixture="world")
def test_running_work_ends_before_its_group(
    dist: Any, rank: int, size: int, async_op: bool
) -> None:
    import torch

    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(torch.ones(1))
    torch.cuda.synchronize()
    with _held() as release:
        work = dist.all_reduce(x, async_op=async_op)
        if work is not None:
            work.wait()
        released = threading.Timer(3, release)  # longer than the time limit on CPUs
        released.start()
        dist.destroy_process_group()
        released.join()
    assert x.tolist() == [3.0] * 4


@pytest.mark.parametrize("async_op", [False, True])
@on_ranks(2, fixture="world")
def test_work_that_is_aborted_is_an_error(dist: Any, rank: int, size: int, async_op: bool) -> None:
    import torch

    dist.all_reduce(torch.ones(1))
    torch.cuda.synchronize()
    dist.set_timeout(timedelta(seconds=1))
    for comm_stream in dist.group.WORLD.comm_streams().values():
        comm_stream.comm.timeout = 60  # else the operation may abort the process first
    with library.record() as record, _held() as release:

        def release_in_abort() -> None:  # which waits for earlier work
            wait_until(lambda: record.read() or record.named("ncclCommAbort"))
            release()

        thread = threading.Thread(target=release_in_abort, daemon=True)
        thread.start()
        dist.all_reduce(torch.ones(1), async_op=async_op)
        with pytest.raises(dist.DistBackendError, match="still running after 1 seconds"):
            dist.destroy_process_group()
        thread.join()
    assert not dist.is_initialized()
    torch.cuda.synchronize()


@on_ranks(2, 3, fixture="world")
def test_all_are_finalized_before_one_is_destroyed(dist: Any, rank: int, size: int) -> None:
    """Every pair in both directions and two groups, and the NCCL calls when they end."""
    import torch

    dist.all_reduce(torch.ones(1))
    other = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=other)
    works = []
    for peer in range(size):
        if peer != rank:
            works += [dist.isend(torch.ones(2), peer), dist.irecv(torch.empty(2), peer)]
    for work in works:
        work.wait()
    with library.record() as record:
        dist.destroy_process_group()
    ends = record.named("ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort")
    count = 1 + (rank < 2) + 2 * (size - 1)
    calls = ["ncclCommFinalize"] * count + ["ncclCommDestroy"] * count
    assert [call.function for call in ends] == calls


@on_ranks(3, fixture="world")
def test_both_directions_connect_at_the_first_transfer(dist: Any, rank: int, size: int) -> None:
    """Rank 0 sends to rank 1."""
    import torch

    tensor = torch.full((3,), float(rank))
    with library.record() as record:
        if rank == 0:
            dist.send(tensor, 1)
            dist.isend(tensor, 1).wait()
        elif rank == 1:
            dist.recv(tensor, 0)
            dist.irecv(tensor, 0).wait()
            assert tensor.tolist() == [0.0] * 3
        torch.cuda.synchronize()
    assert len(record.named(INIT)) == (2, 2, 0)[rank]


@on_ranks(3, fixture="world")
def test_with_device_id_transfers_use_the_group(
    dist: Any, rank: int, size: int, tmp_path: Path
) -> None:
    """Rank 0 sends to rank 2."""
    import torch

    dist.destroy_process_group()
    url, device = f"file://{tmp_path}/second", torch.device("cuda", rank)
    dist.init_process_group("nccl", url, world_size=size, rank=rank, device_id=device)
    tensor = torch.full((3,), float(rank))
    with library.record() as record, python_calls() as calls:
        if rank == 0:
            dist.send(tensor, 2)
            dist.isend(tensor + 1, 2).wait()
        elif rank == 2:
            received = torch.empty(3)
            assert dist.recv(received, 0) == 0
            assert received.tolist() == [0.0] * 3
            work = dist.irecv(received, 0)
            work.wait()
            assert work.source_rank() == 0
            assert received.tolist() == [1.0] * 3
        torch.cuda.synchronize()
    with pytest.raises(ValueError, match="should not be the same as the rank"):
        dist.send(tensor, rank)
    with pytest.raises(ValueError, match="rank 9 is out of range for a group of size 3"):
        dist.isend(tensor, 9)
    assert not {"recv", "irecv"} & calls.keys()
    assert not record.named(INIT)


@on_ranks(2, fixture="world")
def test_a_transfer_on_another_device(dist: Any, rank: int, size: int) -> None:
    """Between ranks of a group that is not bound to a device, as in torch."""
    import torch

    dist.all_reduce(torch.ones(1))  # creates the communicator of the group, on another device
    tensor = torch.full((4,), rank + 1.0, device=f"cuda:{rank + 2}")
    for _ in range(2):
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
    assert tensor.tolist() == [1.0] * 4


@on_ranks(2, 3, 4, fixture="world")
def test_a_transfer_that_connects_waits_for_its_tensor(dist: Any, rank: int, size: int) -> None:
    """A send that connects in the background runs after earlier work of the caller's stream."""
    import torch

    stream = torch.cuda.Stream()
    sent, received = torch.zeros(4), torch.zeros(4)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        with _held():
            sent.fill_(rank + 1.0)
            sending = dist.isend(sent, (rank + 1) % size)
            receiving = dist.irecv(received, (rank - 1) % size)
            assert not stream.query()
        receiving.wait()
        copy = received + 0
        sending.wait()
    stream.synchronize()
    assert copy.tolist() == [(rank - 1) % size + 1.0] * 4


@on_ranks(2, fixture="world")
def test_a_first_transfer_in_a_capture_is_refused(dist: Any, rank: int, size: int) -> None:
    import torch

    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    for call in (dist.send, dist.isend):
        graph = torch.cuda.graph(torch.cuda.CUDAGraph())
        with pytest.raises(RuntimeError, match="cannot be captured"), graph:
            call(tensor, 1 - rank)


@on_ranks(1, fixture="world")
def test_pairs_have_few_ctas(dist: Any, rank: int, size: int) -> None:
    import torch

    from pynccl import nccl
    from pynccl.mirror.group.process_group import Options

    pg, device = dist.group.WORLD, torch.device("cuda")
    assert pg._pair_config(device).max_ctas == 8
    pg.options = Options(nccl.Config(max_ctas=20, min_ctas=2))
    given = pg._pair_config(device)
    assert given.min_ctas == 2
    assert given is not pg.options.config
    assert given.max_ctas == 20
