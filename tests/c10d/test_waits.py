"""Proves what becomes of waits on CPUs, which run their operations on the waiting thread: if ranks
wait in different orders, a signal comes, several threads wait, the process forks, or nothing is
waited for. tests/reliability/test_failures_of_works.py has their failures.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.c10d.in_torch import set_event, wait_event
from tests.support.blocking import in_threads, interrupt_when_blocked
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

World = Callable[..., list[Any]]

_SOON = 10.0  # seconds until an error, on a busy machine; the time limit is 30


def _withhold(group: dist.ProcessGroup | None = None) -> None:
    """Wait at once for so many operations that the lane's thread is not woken for the next."""
    for _ in range(40):
        _sum(group).wait()


def _sum(group: dist.ProcessGroup | None = None) -> dist.Work:
    work: dist.Work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    return work


def _fails(wait: Callable[[], object]) -> str:
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError) as raised:
        wait()
    assert time.monotonic() - began < _SOON
    return str(raised.value)


@on_ranks(2, fresh=True)
def test_operations_of_different_groups(rank: int, size: int) -> None:
    """Each rank waits for the other in a group in which the other issues nothing.

    hostnccl finds no deadlock while the threads of lanes could call it, so the time limit ends it.
    """
    groups: list[Any] = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups:
        _withhold(group)
        group.set_timeout(timedelta(seconds=2))
    text = _fails(_sum(groups[rank]).wait)
    for part in ("all_reduce", f"rank {1 - rank}"):
        assert part in text


@on_ranks(2, env={"HOSTNCCL_DEADLOCK_MS": "10000"})
def test_a_timeout_names_the_missing_ranks(rank: int, size: int) -> None:
    group: Any = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    group.set_timeout(timedelta(seconds=1))
    if rank == 0:
        text = _fails(_sum(group).wait)
        assert "rank 1 has not issued #2 all_reduce" in text, text
        set_event("raised")
    else:
        wait_event("raised")


@on_ranks(2, env={"HOSTNCCL_DEADLOCK_MS": "30"})
def test_opposite_orders_of_two_groups(rank: int, size: int) -> None:
    """Operations that the threads of the lanes have not begun do not count as a deadlock."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for _ in range(20):
        for group in groups:
            _withhold(group)
        works = [_sum(group) for group in groups[:: 1 - 2 * rank]]
        for work in works:
            work.wait()


@on_ranks(2, fresh=True)
def test_an_interrupt_of_pending_works(rank: int, size: int) -> None:
    """If the main thread runs the operation, the communicator ends; else only the wait does."""
    _withhold()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        if store.get("interrupted") == b"the wait":
            for work in [_sum() for _ in range(5)]:
                work.wait()
        else:
            _fails(_sum().wait)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    works = [_sum() for _ in range(5)]
    interrupt_when_blocked()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        works[2].wait()
        time.sleep(0.01)  # the exception is raised between two instructions
    ended = works[2].is_completed()
    store.set("interrupted", "the operation" if ended else "the wait")
    for work in works:
        if ended:
            assert _fails(work.wait)
        else:
            work.wait()
        assert work.is_success() != ended


_WAITS: list[Callable[[Any], object]] = [
    lambda work: work.wait(),
    lambda work: work.wait(timedelta(seconds=20)),
    lambda work: work.get_future().wait(),
]


def _wait_for_all(works: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    for work in chance.sample(works, len(works)):
        chance.choices(_WAITS, (8, 1, 1))[0](work)


@on_ranks(2, 3)
def test_waits_of_several_threads(rank: int, size: int) -> None:
    """On the same works in any order, some with a limit or a future."""
    for repeat in range(20 if FULL else 6):
        if repeat % 2:
            _withhold()
        tensors = [torch.full((3,), n + 1.0) for n in range(12)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        seeds = [repeat * 100 + rank * 10 + thread for thread in range(4)]
        in_threads(*(partial(_wait_for_all, works, seed) for seed in seeds))
        assert [t[0].item() for t in tensors] == [size * (n + 1.0) for n in range(12)]


@on_ranks(2)
def test_a_callback_that_waits(rank: int, size: int) -> None:
    """For operations that are issued before it runs, with or without callbacks themselves."""
    dist.all_reduce(torch.ones(1))
    for waiter in range(size):
        if rank == waiter:
            _wait_in_callbacks(partial(set_event, f"{waiter} is ready"))
        else:
            wait_event(f"{waiter} is ready")
            for work in [_sum() for _ in range(4)]:
                work.wait()


def _wait_in_callbacks(ready: Callable[[], None]) -> None:
    """Issue four operations, which the other rank takes part in once this one is ready."""
    waited: list[int] = []
    works = [_sum()]

    def wait_for(number: int) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            works[number].wait()
            waited.append(number)

        return callback

    done = works[0].get_future().then(wait_for(2))
    works.extend(_sum() for _ in range(3))
    other = works[3].get_future().then(wait_for(1))
    ready()
    done.wait()
    other.wait()
    assert sorted(waited) == [1, 2]


def _in_a_child(call: Callable[[], object]) -> int:
    """The exit status of a child that calls a function: 0 if it raises what it should."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _refused(work: dist.Work) -> None:
    for call in (work.wait, _sum, partial(dist.all_reduce, torch.ones(1))):
        assert "process was forked" in _fails(call)
    dist.destroy_process_group()


@on_ranks(2, fresh=True)
def test_a_child_of_a_fork(rank: int, size: int) -> None:
    """Between an operation and its wait: the child raises, and the parent continues."""
    for withheld in (True, False):
        if withheld:
            _withhold()
        if rank == 1:  # the operation of the other rank is pending until then
            wait_event(f"forked {withheld}")
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            assert _in_a_child(partial(_refused, work)) == 0
            set_event(f"forked {withheld}")
        work.wait()
        assert x.tolist() == [2.0] * 4


@pytest.mark.parametrize("withheld", [False, True])
@on_ranks(2)
def test_a_group_that_is_destroyed_with_pending_works(rank: int, size: int, withheld: bool) -> None:
    """Those of all ranks are done; one that the others do not issue ends the group in time."""
    group = dist.new_group([0, 1])
    if withheld:
        _withhold(group)
    tensors = [torch.ones(3) for _ in range(10)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    dist.destroy_process_group(group)
    assert all(tensor.tolist() == [2.0] * 3 for tensor in tensors)
    assert all(work.is_success() for work in works)
    group = dist.new_group([0, 1])
    _withhold(group)
    works = [_sum(group)] if rank == 0 else []
    began = time.monotonic()
    dist.destroy_process_group(group)
    assert time.monotonic() - began < _SOON
    for work in works:
        assert _fails(work.wait)
