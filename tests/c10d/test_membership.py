"""Proves merge, shrink, reconfigure, suspend and resume of the backend, and torch's queries about
the state of groups and operations.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType, WorkResult
from torch.distributed.distributed_c10d import SHRINK_ABORT, SHRINK_DEFAULT

from pynccl import memory, nccl
from tests.c10d.in_torch import (
    backend_of,
    cpu_communicator,
    run_in_torch,
    set_event,
    wait_event,
)
from tests.c10d.versions import VERSION, needs_torch
from tests.support.blocking import wait_until_blocked, when_blocked
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]


def _sum_is_right(group: Any = None) -> None:
    value = torch.tensor([float(dist.get_rank(group))])
    dist.all_reduce(value, group=group)
    assert value.item() == sum(range(dist.get_world_size(group)))


def _several_sums() -> None:
    """A rank may die after participating in one of them."""
    for _ in range(3):
        dist.all_reduce(torch.ones(1))


def _exchange_handles(folder: str, uuid: int, own: str, key: int, keys: range) -> list[str]:
    """The handles of all ranks, by key, which callers must exchange outside the job."""
    store = dist.FileStore(f"{folder}/handles")
    store.set(f"{uuid} {key}", own)
    return [store.get(f"{uuid} {other}").decode() for other in keys]


def _message_arrives(group: Any) -> None:
    """From the last rank to the first, through the communicator of these two."""
    value = torch.zeros(1)
    if group.rank() == group.size() - 1:
        group.send([torch.ones(1)], 0, 0).wait()
    elif group.rank() == 0:
        group.recv([value], group.size() - 1, 0).wait()
        assert value.item() == 1


# Merge


def _merged(rank: int, size: int, folder: str) -> tuple[int, str, str]:
    """Two groups, each of half the ranks, become one of all."""
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    groups = [dist.new_group(half, timedelta(seconds=40)) for half in halves]
    half: Any = groups[rank >= size // 2]
    store = dist.FileStore(f"{folder}/merged", size)
    both = half.merge_remote_group(store, size, timedelta(seconds=20), "both", "a description")
    value = torch.tensor([float(rank)])
    both.allreduce([value]).wait()
    assert value.item() == sum(range(size))
    _message_arrives(both)
    both.barrier().wait()
    value = torch.ones(1)
    half.allreduce([value]).wait()  # the merged groups remain
    assert value.item() == size // 2
    found = both.rank(), both.group_name, both.group_desc
    assert both.size() == size
    assert backend_of(both).options._timeout == timedelta(seconds=20)
    options = backend_of(half).options
    assert (options._timeout, options.group_name) == (timedelta(seconds=40), half.group_name)
    both.shutdown()
    return found


def test_merge(torch_world: World, tmp_path: Path) -> None:
    found = torch_world(4, _merged, str(tmp_path))
    assert sorted(found) == [(rank, "both", "a description") for rank in range(4)]


@on_ranks(2)
def test_merge_with_a_missing_rank(rank: int, size: int, tmp_path: Path) -> None:
    store = dist.FileStore(f"{tmp_path}/merged", size)
    pg: Any = dist.group.WORLD
    merged = pg.merge_remote_group(store, size + 1, timedelta(seconds=2))
    with pytest.raises(dist.DistBackendError, match="Timed out waiting 2 seconds for rank 2 of 3"):
        merged.allreduce([torch.ones(1)]).wait()


@needs_torch(2, 14, "Backend.merge")
@on_ranks(2)
def test_wrong_arguments_of_merge(rank: int, size: int) -> None:
    backend = backend_of()
    with pytest.raises(ValueError, match="rank: 2 is not in"):
        backend.merge(dist.HashStore(), backend.options, 2, 2)
    with pytest.raises(ValueError, match="size: 0 is below 1"):
        backend.merge(dist.HashStore(), backend.options, 0, 0)
    gloo: Any = dist.new_group(backend="gloo")
    with pytest.raises(TypeError, match="expected the options of pynccl, got those of gloo"):
        backend.merge(dist.HashStore(), backend_of(gloo).options, rank, size)
    dist.barrier()  # gloo connects until then


# Shrink


def _shrunk(rank: int, size: int, flags: int, connects: bool) -> tuple[int, int]:
    """The default group without two ranks, then without another one."""
    if connects:
        _sum_is_right()
    for excluded in ([1, 3], [0]):
        if dist.get_rank() in excluded:
            dist.distributed_c10d._get_default_group().abort()
            return -1, -1
        old = dist.group.WORLD
        pg = dist.shrink_group(excluded, shrink_flags=flags)
        assert dist.group.WORLD is pg
        assert pg is not old
        _sum_is_right()
        _message_arrives(pg)
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, rank)
        assert gathered == sorted(gathered)
    assert backend_of(pg).options.global_ranks_in_group == [2, 4]
    return dist.get_rank(), dist.get_world_size()


@on_ranks(3)
def test_training_after_shrink(rank: int, size: int) -> None:
    """DistributedDataParallel does not cast the new backend to gloo's class."""
    if rank == 1:
        return
    pg = dist.shrink_group([1], shrink_flags=SHRINK_ABORT)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.full((2, 3), float(rank))).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None
    assert (gradient == 2 * sum(set(range(size)) - {1}) / (size - 1)).all()
    assert pg._get_backend_name() == "custom"


@pytest.mark.parametrize("flags", [SHRINK_DEFAULT, SHRINK_ABORT])
@pytest.mark.parametrize("connects", [False, True])
def test_shrink(torch_world: World, flags: int, connects: bool) -> None:
    found = torch_world(5, _shrunk, flags, connects)
    assert found == [(-1, -1), (-1, -1), (0, 2), (-1, -1), (1, 2)]


@on_ranks(3)
def test_shrink_with_options_and_wrong_arguments(rank: int, size: int) -> None:
    from pynccl.c10d import options

    group: Any = dist.new_group()
    _sum_is_right(group)
    backend = backend_of(group)
    assert backend.supports_shrinking
    if rank == 0:
        return
    with pytest.raises(ValueError, match=f"has ranks 0 to {size - 1}, got {size}"):
        backend.shrink([size])
    with pytest.raises(ValueError, match="shrink_flags: 2"):
        backend.shrink([0], 2)
    with pytest.raises(ValueError, match="ranks_to_exclude: a rank is repeated"):
        backend.shrink([0, 0])
    with pytest.raises(ValueError, match=f"{rank} is this rank"):
        backend.shrink([rank])
    with pytest.raises(ValueError, match="ranks_to_exclude: expected at least one rank"):
        backend.shrink([])
    given = options(config=nccl.Config(init_timeout=9.0))
    given._timeout = timedelta(seconds=7)
    pg = dist.shrink_group([0], group, pg_options=given)
    value = torch.tensor([float(rank)])
    pg.allreduce([value]).wait()
    assert value.item() == sum(range(size))
    made = cpu_communicator(pg)
    assert (made.rank, made.nranks, made.timeout) == (rank - 1, size - 1, 7.0)
    assert dist.distributed_c10d._get_default_group().size() == size


@needs_torch(2, 15, "abort hooks of all backends")
@on_ranks(3)
def test_shrink_is_not_a_failure(rank: int, size: int) -> None:
    """An abandoned communicator does not count as failed."""
    group: Any = dist.new_group()
    _sum_is_right(group)
    failed: list[int] = []
    backend = backend_of(group)
    backend.register_abort_hook(1, lambda: failed.append(rank))
    if rank == 0:
        return
    dist.shrink_group([0], group, shrink_flags=SHRINK_ABORT)
    time.sleep(0.3)  # the thread polls for failures every 50 ms
    backend.unregister_abort_hook(1)
    assert not failed


def _shrunk_after_a_death(rank: int, _size: int, flags: int) -> str:
    _sum_is_right()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _work = dist.all_reduce(torch.ones(1), async_op=True)  # still in progress when it shrinks
    if flags == SHRINK_DEFAULT:
        with pytest.raises(dist.DistBackendError):
            _several_sums()
        assert backend_of().get_error() == ErrorType.REMOTE_ERROR
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.shrink_group([1])
        assert time.monotonic() - began < 15  # the timeout is 30 s
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1))
        text = str(caught.value)
    else:
        text = ""
    dist.shrink_group([1], shrink_flags=SHRINK_ABORT)
    _sum_is_right()
    assert backend_of().get_error() == ErrorType.SUCCESS
    assert dist.get_world_size() == 2
    return text


@pytest.mark.parametrize("flags", [SHRINK_DEFAULT, SHRINK_ABORT])
def test_shrink_after_the_death_of_a_rank(launch: Launcher, tmp_path: Path, flags: int) -> None:
    url = f"file://{tmp_path}/store"
    outcomes = launch.outcomes(3, run_in_torch, _shrunk_after_a_death, url, {}, (flags,))
    assert outcomes[1].died
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank].error
        assert ("rank 1" in outcomes[rank].value) == (flags == SHRINK_DEFAULT)


@on_ranks(3)
def test_shrink_after_a_timeout(rank: int, size: int) -> None:
    """The communicators have ended, so the new group creates its own."""
    from pynccl.c10d import options

    pg: Any = dist.group.WORLD
    _sum_is_right()
    pg.set_timeout(timedelta(seconds=1))
    if rank == 1:
        wait_event("raised 0")
        wait_event("raised 2")
        pg.abort()
        return
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.all_reduce(torch.ones(1))
    set_event(f"raised {rank}")
    given = options()
    given._timeout = timedelta(seconds=20)
    dist.shrink_group([1], shrink_flags=SHRINK_ABORT, pg_options=given)
    _sum_is_right()
    assert dist.get_rank() == {0: 0, 2: 1}[rank]


# Reconfigure


def _configured_by_handles(process: Rank, size: int, folder: str) -> tuple[int, int]:
    """Reversed ranks; then without the first process; then with a new one in its place."""
    import pynccl.c10d  # noqa: F401 - it registers the backend

    rank = process.rank
    newcomer = rank == size - 1
    size -= 1  # the last process joins later
    dist.init_process_group(
        "pynccl",
        store=dist.FileStore(f"{folder}/store", size),
        rank=0 if newcomer else rank,
        world_size=size,
        timeout=timedelta(seconds=30),
        enable_reconfigure=True,
    )
    api: Any = dist.distributed_c10d
    pg: Any = dist.group.WORLD
    own = api._get_reconfigure_handle()
    assert api._supports_reconfigure()
    assert not backend_of()._is_initialized()
    with pytest.raises(RuntimeError, match="Call reconfigure"):
        dist.all_reduce(torch.ones(1))
    if not newcomer:
        every = _exchange_handles(folder, 1, own, rank, range(size))
        _wrong_reconfigurations(api, every, own)
        work = api._reconfigure(1, every[::-1])
        assert work.wait()
        assert work.is_success()
        mine = size - 1 - rank
        assert (pg.rank(), pg.size(), dist.get_rank()) == (mine, size, mine)
        assert (backend_of().rank(), backend_of().size()) == (mine, size)
        with pytest.raises(ValueError, match="uuid: 1 was used before"):
            api._reconfigure(1, every)
        for _ in range(3):
            _sum_is_right()
        assert backend_of()._get_sequence_number_for_group() == 3
        _message_arrives(pg)
        dist.barrier()
        if rank == 0:
            dist.destroy_process_group()
            return -1, -1
        every = _exchange_handles(folder, 2, own, rank, range(1, size))
        api._reconfigure(2, set(every), timeout=timedelta(seconds=20))
        assert api._get_reconfigure_handle() == own
        assert (pg.rank(), pg.size()) == (sorted(every).index(own), size - 1)
        assert backend_of()._get_sequence_number_for_group() == 0
        assert cpu_communicator().timeout == 30  # not that of the reconfiguration
        _sum_is_right()
    every = _exchange_handles(folder, 3, own, rank, range(1, size + 1))
    api._reconfigure(3, every)
    assert dist.get_world_size() == size
    _sum_is_right()
    _message_arrives(pg)
    dist.barrier()
    found = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    return found


def _wrong_reconfigurations(api: Any, every: list[str], own: str) -> None:
    others = [handle for handle in every if handle != own]
    for handles, text in (
        (others, "this rank's handle is not among"),
        ([own, own], "is repeated"),
        ([own, "x"], "is not a handle of pynccl"),
        ([own, "[1, 2, 3]"], "is not a handle of pynccl"),
    ):
        with pytest.raises(ValueError, match=text):
            api._reconfigure(1, handles)
    with pytest.raises(ValueError, match="hints"):
        api._reconfigure(1, every, hints={"a": "b"})
    with pytest.raises(ValueError, match="timeout"):
        api._reconfigure(1, every, timeout=timedelta(seconds=-1))


@needs_torch(2, 14, "Backend.reconfigure")
@pytest.mark.parametrize("nranks", [2, 4])
def test_reconfigure(launch: Launcher, tmp_path: Path, nranks: int) -> None:
    results = launch(nranks + 1, _configured_by_handles, nranks + 1, str(tmp_path))
    assert sorted(results) == [(-1, -1)] + [(rank, nranks) for rank in range(nranks)]


def _reconfigured_without_one(
    rank: int, size: int, folder: str, dies: bool
) -> tuple[str, int, int] | None:
    """Includes a group without enable_reconfigure; operations are in progress on two threads."""
    api: Any = dist.distributed_c10d
    _sum_is_right()
    every = _exchange_handles(folder, 1, api._get_reconfigure_handle(), rank, range(size))
    if rank == 1:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        while len(list(Path(folder).glob("done*"))) < size - 1:
            time.sleep(0.01)
        return None
    raised: list[BaseException] = []

    def operate() -> None:
        try:
            _several_sums()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=operate)
    thread.start()
    wait_until_blocked(thread)
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    every.pop(1)
    api._reconfigure(7, every)
    thread.join()
    with pytest.raises(dist.DistBackendError):
        works[-1].wait()
    _sum_is_right()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    assert backend_of().get_error() == ErrorType.SUCCESS
    Path(folder, f"done{rank}").touch()
    assert isinstance(raised[0], dist.DistBackendError)
    return str(raised[0]), dist.get_rank(), dist.get_world_size()


@needs_torch(2, 14, "Backend.reconfigure")
@pytest.mark.parametrize("dies", [False, True])
def test_reconfigure_without_a_rank(launch: Launcher, tmp_path: Path, dies: bool) -> None:
    url, args = f"file://{tmp_path}/store", (str(tmp_path), dies)
    outcomes = launch.outcomes(4, run_in_torch, _reconfigured_without_one, url, {}, args)
    assert bool(outcomes[1].died) == dies
    for new, rank in enumerate((0, 2, 3)):
        assert outcomes[rank].ok, outcomes[rank].error
        assert outcomes[rank].value[1:] == (new, 3)
        text = outcomes[rank].value[0]
        assert "all_reduce" in text or "reconfigured" in text, text


def _failed_reconfigurations(rank: int, size: int, folder: str) -> tuple[str, str]:
    """With a handle without a process, and with handles that differ between ranks."""
    api: Any = dist.distributed_c10d
    own = api._get_reconfigure_handle()
    every = _exchange_handles(folder, 1, own, rank, range(size))
    backend_of().suspend()  # the new configuration is not
    nobody = '["elsewhere", ["", 12345, ""], "0123"]'
    seconds = 2 if rank else 0.5  # the timeout of the group is 30 s
    second: list[BaseException] = []

    def reconfigure_too() -> None:
        try:
            api._reconfigure(5, every)
        except BaseException as error:
            second.append(error)

    if rank == 1:
        wait_event("gave up")  # rank 0 still counts as present
        thread = when_blocked(reconfigure_too)
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError) as missing:
        api._reconfigure(1, [*every, nobody], timeout=timedelta(seconds=seconds))
    assert seconds - 0.1 < time.monotonic() - began < 15
    if rank == 0:
        set_event("gave up")
    else:
        thread.join()
        assert "another thread is reconfiguring the group" in str(second[0])
    with pytest.raises(RuntimeError, match="reconfiguration of the process group failed"):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(RuntimeError, match="reconfiguration of the process group failed"):
        dist.isend(torch.ones(1), 1 - rank)
    with pytest.raises(dist.DistBackendError) as other:
        api._reconfigure(2, every if rank else every[::-1], timeout=timedelta(seconds=25))
    with pytest.raises(ValueError, match="uuid: 2 was used before"):
        api._reconfigure(2, every)
    backend_of().abort()
    api._reconfigure(3, every)
    _sum_is_right()
    return str(missing.value), str(other.value)


@needs_torch(2, 14, "Backend.reconfigure")
def test_a_reconfiguration_that_fails(torch_world: World, tmp_path: Path) -> None:
    first, second = torch_world(2, _failed_reconfigurations, str(tmp_path))
    nobody = r"2 \(process 12345 on elsewhere\)"
    assert re.search(rf"waiting 0.5 seconds for ranks 1 \(.*\), {nobody}", first[0])
    assert re.search(rf"Timed out waiting 2 seconds for rank {nobody}", second[0])
    for _, other in (first, second):
        assert "was given different handles, or a different order" in other


# Suspend


def _suspended(rank: int, size: int) -> dict[str, int]:
    backend = backend_of()
    assert backend.memory_stats() == {"suspend": 0, "suspended": 0, "persist": 0, "total": 0}
    assert backend._is_initialized()
    big = torch.ones(1_000_000)
    dist.all_reduce(big)
    if rank < 2:
        _pair_message(rank)
    waiting = dist.all_reduce(torch.ones(1), async_op=True)
    before = backend.memory_stats()
    assert before["total"] == before["suspend"] + before["persist"]
    assert before["suspended"] == 0
    for _ in range(2):
        backend.suspend()
        assert waiting.is_completed()
        during = backend.memory_stats()
        assert during["suspended"] == 1
        assert not backend._is_initialized()
        assert during["suspend"] == 0
        assert during["total"] < before["total"]
        for use in (
            lambda: dist.all_reduce(torch.ones(1)),
            lambda: dist.all_reduce(torch.ones(1), async_op=True),
            lambda: dist.isend(torch.ones(1), (rank + 1) % size),
            lambda: dist.shrink_group([(rank + 1) % size]),
        ):
            with pytest.raises(dist.DistBackendError, match=r"suspended; call resume\(\) first"):
                use()
        with pytest.raises(dist.DistBackendError, match=r"suspend.* suspended already"):
            backend.suspend()
        backend.resume()
        with pytest.raises(dist.DistBackendError, match=r"resume: .* is not suspended"):
            backend.resume()
        big.fill_(float(rank))
        dist.all_reduce(big)
        assert big[-1].item() == sum(range(size))
        if rank < 2:
            _pair_message(rank)
    backend.suspend()  # and destroyed while it is suspended
    return before


def _pair_message(rank: int) -> None:
    """In one direction: the communicator of the other direction stays unused."""
    value = torch.full((1000,), float(rank))
    if rank == 0:
        dist.send(value, 1)
    else:
        dist.recv(value, 0)
        assert value[-1].item() == 0


@needs_torch(2, 13, "Backend.suspend")
def test_suspend(torch_world: World) -> None:
    stats = torch_world(3, _suspended)
    # Ranks 0 and 1 also have the communicators of their messages.
    assert stats[0]["total"] > stats[2]["total"] > 256 << 10


def _suspended_alone(rank: int, _size: int) -> None:
    _sum_is_right()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError):
        backend_of().suspend()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(1))
    assert backend_of().get_error() == ErrorType.REMOTE_ERROR


@needs_torch(2, 13, "Backend.suspend")
def test_suspend_with_a_rank_that_died(launch: Launcher, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    outcomes = launch.outcomes(2, run_in_torch, _suspended_alone, url, {}, ())
    assert outcomes[1].died
    assert outcomes[0].ok, outcomes[0].error


# State queries


@on_ranks(2)
def test_error_and_result_of_a_timeout(rank: int, size: int) -> None:
    backend = backend_of()
    _sum_is_right()
    assert backend.get_error() == ErrorType.SUCCESS
    if rank == 1:
        wait_event("seen")
        return
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=1.5)
    began = time.monotonic()
    work = backend.allreduce([torch.ones(1)], options)
    result = work.get_future_result()
    doubled = result.then(lambda done: done.value() * 2)
    assert not result.done() or time.monotonic() - began > 1.4
    if VERSION >= (2, 14):
        assert work.timeout == timedelta(seconds=1.5)
    with pytest.raises(dist.DistBackendError, match=r"all_reduce.*within 1\.5 s.*rank 1"):
        work.wait()
    assert WorkResult(result.wait()) == WorkResult.TIMEOUT
    assert doubled.wait() == 2 * WorkResult.TIMEOUT.value
    assert WorkResult(work.get_future_result().wait()) == WorkResult.TIMEOUT
    assert backend.get_error() == ErrorType.TIMEOUT
    set_event("seen")


@on_ranks(2)
def test_an_aborted_operation(rank: int, size: int) -> None:
    assert backend_of()._is_initialized()  # the first operation creates the communicator
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert WorkResult(work.get_future_result().wait()) == WorkResult.SUCCESS
    assert backend_of()._is_initialized()
    if rank == 1:
        wait_event("aborted")
        return
    work = dist.all_reduce(torch.ones(1), async_op=True)
    result = work.get_future_result()
    when_blocked(backend_of().abort)
    with pytest.raises(dist.DistBackendError, match="all_reduce"):
        work.wait()
    set_event("aborted")
    assert WorkResult(result.wait()) == WorkResult.COMM_ERROR
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(dist.DistBackendError, match="aborted"):
        dist.all_reduce(torch.ones(1))
    assert not backend_of()._is_initialized()


@on_ranks(2, env={"TORCH_FR_BUFFER_SIZE": "0"})
def test_durations_and_pending_works(rank: int, size: int) -> None:
    pg: Any = dist.group.WORLD
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    with pytest.raises(RuntimeError, match="getDuration: all_reduce was not timed"):
        work._get_duration()
    pg._enable_collectives_timing()
    if rank == 1:
        wait_event("has not ended")
        time.sleep(0.3)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if rank == 0:
        with pytest.raises(RuntimeError, match="getDuration: all_reduce has not ended"):
            work._get_duration()
        set_event("has not ended")
    pg._wait_for_pending_works()
    assert work.is_completed()
    assert work._get_duration() > (300 if rank == 0 else 0)  # milliseconds


@on_ranks(2)
def test_pending_works_that_do_not_end(rank: int, size: int) -> None:
    pg: Any = dist.group.WORLD
    _sum_is_right()
    pg.set_timeout(timedelta(seconds=0.5))
    if rank == 1:
        wait_event("pending")
        return
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=30)
    work = backend_of().allreduce([torch.ones(1)], options)
    with pytest.raises(dist.DistBackendError, match=r"waitForPendingWorks: .* after 500 ms"):
        pg._wait_for_pending_works()
    assert not work.is_completed()
    set_event("pending")


def _numbered(rank: int, size: int) -> list[int]:
    """Messages do not involve all ranks, so they do not count as collectives."""
    if rank < 2:
        _pair_message(rank)
        other = 1 - rank
        ops = [
            dist.P2POp(dist.isend, torch.ones(1), other),
            dist.P2POp(dist.irecv, torch.ones(1), other),
        ]
    else:
        ops = []
    if ops and size == 2:  # a batch is one call on the group's communicator
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    dist.barrier()
    numbers = [backend_of()._get_sequence_number_for_group()]
    if VERSION >= (2, 14):
        work = dist.all_reduce(torch.ones(1), async_op=True)
        numbers.append(work._get_sequence_number())
        work.wait()
        message = dist.isend(torch.ones(1), (rank + 1) % size)
        assert message is not None
        numbers.append(message._get_sequence_number())
        dist.recv(torch.ones(1), (rank - 1) % size)
        message.wait()
    return numbers


def test_messages_are_numbered_separately(torch_world: World) -> None:
    two = torch_world(2, _numbered)
    three = torch_world(3, _numbered)
    if VERSION < (2, 14):
        assert (two, three) == ([[1]] * 2, [[1]] * 3)
    else:
        assert two == [[1, 2, 3]] * 2
        assert three == [[1, 2, 2], [1, 2, 2], [1, 2, 1]]


@on_ranks(1)
def test_the_flight_record_contains_the_name(rank: int, size: int, tmp_path: Path) -> None:
    group: Any = dist.new_group()
    _sum_is_right(group)
    group._set_group_name("another name")
    nccl.dump_flight_record(str(tmp_path / "dump"))
    assert "another name" in (tmp_path / "dump").read_text()


@needs_torch(2, 14, "Backend.reconfigure")
@on_ranks(2)
def test_a_window_ends_with_its_configuration(rank: int, size: int, tmp_path: Path) -> None:
    api: Any = dist.distributed_c10d
    _sum_is_right()
    tensor = memory.torch_empty(nccl.Communicator.borrow(dist.group.WORLD), 4, torch.float32)
    window = api._new_window(tensor)
    every = _exchange_handles(str(tmp_path), 1, api._get_reconfigure_handle(), rank, range(size))
    api._reconfigure(1, every)
    for attempt in (
        lambda: window.put(tensor, 0, 0, False),
        lambda: window.signal(0, False),
        lambda: window.map_remote_tensor(0),
    ):
        with pytest.raises(ValueError, match="window: the group was reconfigured"):
            attempt()
    window.tensor_deregister()  # sends nothing
    window.tensor_register(tensor)
    window.signal(1 - rank, False)
    window.wait_signal(1 - rank, False)
    window.tensor_deregister()
