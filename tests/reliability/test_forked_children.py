"""Proves that the death of a rank is an error in its peers even if a child that it has forked, such
as a worker of a DataLoader, lives on with copies of its sockets: in operations, in the rendezvous,
and in the exchanges through the store, which the mirror and the backend share.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.reliability.cells import wait_until_joined
from tests.reliability.workers import Lane, Member
from tests.support.blocking import wait_until, when_blocked
from tests.support.in_world import init_on_host

pytestmark = pytest.mark.long

_SOON = 20.0  # seconds, even on a busy machine; the groups' timeouts are minutes
_START = 120.0  # seconds to import torch
_LIFE = 60.0  # seconds until an orphaned child exits
_INSIDE = 0.5  # seconds until a call certainly waits for other ranks


@pytest.fixture(scope="module")
def lane() -> Iterator[Lane]:
    with Lane() as lane:
        yield lane


def _fork(member: Member) -> None:
    if (child := os.fork()) == 0:
        time.sleep(_LIFE)
        os._exit(0)
    member.report(child)
    member.report("ready")


def _fork_and_wait(member: Member) -> None:
    time.sleep(_INSIDE)  # the others are in their calls
    _fork(member)
    member.sleep_for_ever()


def _fork_inside(member: Member, call: Callable[[], object]) -> None:
    """Fork on another thread while a call waits for the other ranks."""
    when_blocked(lambda: _fork(member))
    call()
    raise AssertionError("the call returned, although ranks are missing")


def _fails(error: Any, match: str, call: Callable[[], object]) -> None:  # noqa: ANN401
    with pytest.raises(error, match=match):
        call()


def _run(
    lane: Lane,
    nranks: int,
    victim: int,
    live: Callable[..., None],
    *args: object,
    slowly: bool = False,
) -> None:
    """Kill a rank whose child stays alive; the others must end without an exception.

    A killed process frees its memory before it closes its sockets. If this takes long, they are
    open while the survivors go on; here the rank is stopped meanwhile.
    """
    survivors = [rank for rank in range(nranks) if rank != victim]
    with lane.world(nranks, live, victim, *args) as world:
        try:
            world.gather(range(nranks), "ready", _START)
            if slowly:
                world.signal(victim, signal.SIGSTOP)
                world.say(survivors, "go")
                time.sleep(_INSIDE)
            world.signal(victim, signal.SIGKILL)
            process = Path(f"/proc/{world.pid(victim)}")
            wait_until(lambda: not process.exists(), _SOON)  # and its descriptors are closed
            world.say(survivors, "go")
            world.join(survivors, _SOON)
        finally:
            for child in world.told(victim)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def _all_reduce(member: Member, victim: int) -> None:
    comm = nccl.Communicator(member.nranks, member.share_id(), member.rank, provider="host")
    array = np.ones(4)
    comm.all_reduce(array)
    if member.rank == victim:
        _fork_and_wait(member)
    member.report("ready")
    _fails(nccl.NcclRemoteError, f"rank {victim} .*died", lambda: comm.all_reduce(array))
    comm.abort()


def test_all_reduce(lane: Lane) -> None:
    _run(lane, 3, 1, _all_reduce)


def _rendezvous(member: Member, victim: int) -> None:
    unique_id = member.share_id()
    join = partial(nccl.Communicator, member.nranks, unique_id, member.rank, provider="host")
    last = member.nranks - 1
    if member.rank == victim:
        comm = join(config=nccl.Config(blocking=False))
        wait_until_joined(comm, last)
        _fork(member)
        member.sleep_for_ever()
    member.report("ready")
    if member.rank == last:  # joins after the death of the victim
        member.hear("go")
    _fails(nccl.NcclRemoteError, f"{victim} .*died|pid .*died", join)


@pytest.mark.parametrize(("nranks", "victim"), [(3, 0), (3, 1)])
def test_rendezvous(lane: Lane, nranks: int, victim: int) -> None:
    _run(lane, nranks, victim, _rendezvous)


def _transfer(dist: Any, rank: int) -> Callable[[], object]:  # noqa: ANN401
    """A transfer from rank 0 to rank 1."""
    import torch

    tensor = torch.ones(4)
    return lambda: dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)


def _before_the_first_transfer(member: Member, victim: int) -> None:
    """The survivor connects, and the victim does not."""
    dist = init_on_host(member, member.init_method)
    if member.rank == victim:
        _fork_and_wait(member)
    member.report("ready")
    _fails(dist.DistBackendError, "died", _transfer(dist, member.rank))
    dist.destroy_process_group()


def _in_the_first_transfer(member: Member, victim: int) -> None:
    """The victim connects, and the survivor does when it has died."""
    dist = init_on_host(member, member.init_method)
    if member.rank == victim:
        _fork_inside(member, _transfer(dist, member.rank))
    member.report("ready")
    member.hear("go")
    _fails(dist.DistBackendError, "died", _transfer(dist, member.rank))
    dist.destroy_process_group()


@pytest.mark.parametrize("victim", [0, 1], ids=["sender", "receiver"])
@pytest.mark.parametrize("live", [_before_the_first_transfer, _in_the_first_transfer])
def test_mirror_transfer(lane: Lane, live: Callable[..., None], victim: int) -> None:
    _run(lane, 2, victim, live)


@pytest.mark.parametrize("victim", [0, 1], ids=["sender", "receiver"])
def test_mirror_transfer_with_a_rank_that_dies_slowly(lane: Lane, victim: int) -> None:
    _run(lane, 2, victim, _in_the_first_transfer, slowly=True)


def _new_group(member: Member, victim: int) -> None:
    dist = init_on_host(member, member.init_method)
    if member.rank == victim:
        _fork_and_wait(member)
    member.report("ready")
    gone = f"rank {victim} has died or has left the job"
    for _ in range(2):
        _fails(dist.DistBackendError, gone, dist.new_group)
    survivors = [rank for rank in range(member.nranks) if rank != victim]
    dist.barrier(dist.new_group(survivors))
    dist.destroy_process_group()


def _in_new_group(member: Member, victim: int) -> None:
    """The victim waits for the last rank, which calls it when the victim has died."""
    dist = init_on_host(member, member.init_method)
    if member.rank == victim:
        _fork_inside(member, dist.new_group)
    member.report("ready")
    if member.rank == member.nranks - 1:
        member.hear("go")
    gone = f"rank {victim} has died or has left the job"
    _fails(dist.DistBackendError, gone, dist.new_group)
    dist.destroy_process_group()


@pytest.mark.parametrize("live", [_new_group, _in_new_group])
def test_mirror_new_group(lane: Lane, live: Callable[..., None]) -> None:
    _run(lane, 3, 1, live)
