"""Proves asynchronous operations: in groups, errors and timeouts in wait(), and the lifetime of
tensors. tests/c10d/test_against_torch.py tests every collective.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.blocking import in_threads, wait_until
from tests.support.rank import wait_for
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]


@on_ranks(2, 3, fixture="any_world")
def test_works_of_a_group(dist: Any, rank: int, size: int) -> None:
    """The end of the group issues the operations, whose works are then waited for."""
    from pynccl import nccl

    first, second = torch.full((4,), rank + 1.0), torch.full((4,), 10.0 * rank)
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
    with nccl.group():
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (first, second)]
        assert dist.broadcast(first.clone(), 0) is None
        with pytest.raises(ValueError, match="leave the group first"):
            works[0].wait()
    for work in works:
        work.wait()
    assert first.tolist() == [size * (size + 1) / 2] * 4
    assert second.tolist() == [10.0 * sum(range(size))] * 4

    with contextlib.suppress(KeyError), nccl.group():
        dropped = dist.all_reduce(first, async_op=True)
        raise KeyError
    with pytest.raises(ValueError, match="not issued, because its group failed"):
        dropped.wait()
    with pytest.raises(RuntimeError, match="plan: an asynchronous operation cannot"), nccl.plan():
        dist.all_reduce(first, async_op=True)
    work = dist.all_reduce(second, async_op=True)
    work.wait()
    assert second.tolist() == [size * 10.0 * sum(range(size))] * 4


@on_ranks(2)
def test_timeouts_of_wait(dist: Any, rank: int, size: int) -> None:
    """Numbers are seconds, as in torch; also before the ranks are connected."""
    tensor = torch.ones(1)
    if rank == 0:
        works = [dist.irecv(tensor, 1), dist.all_reduce(torch.ones(1), async_op=True)]
        starts = (
            "recv: Timed out waiting 100ms, the other rank",
            "rank 0: Timed out waiting 100ms for all_reduce",
        )
        for work, start in zip(works, starts, strict=True):
            with pytest.raises(dist.DistBackendError, match=f"^{start}"):
                work.wait(timeout=0.1)
            text = r"timeout: expected a datetime\.timedelta or seconds as a float, got str"
            with pytest.raises(TypeError, match=text):
                work.wait("1")
    dist.monitored_barrier()  # by the store
    if rank == 1:
        works = [dist.isend(tensor, 0), dist.all_reduce(torch.ones(1), async_op=True)]
    for work in works:
        assert work.wait(20.0)
        assert work.wait(None)


@on_ranks(2)
def test_the_future_of_a_complete_operation(dist: Any, rank: int, size: int) -> None:
    """It is complete, even if a later operation waits for another rank or the group is gone."""
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    later = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    assert work.get_future().value() == [tensor]
    dist.monitored_barrier()  # by the store
    later = later or dist.all_reduce(torch.ones(1), async_op=True)
    later.wait()
    dist.destroy_process_group()
    assert later.get_future().value()[0].item() == 2.0


@pytest.mark.parametrize("then", ["all_reduce", "barrier", "destroy_process_group"])
@on_ranks(2)
def test_tensors_of_a_dropped_work_are_released(dist: Any, rank: int, size: int, then: str) -> None:
    """A dropped Work's tensor is released by the next call after completion."""
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    tensor = torch.ones(1000)
    seen = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    wait_until(lambda: dist.get_backend_impl().flight_record()[-1].state == "done")
    if then == "all_reduce":
        dist.all_reduce(torch.ones(1))
    elif then == "barrier":
        dist.barrier()
    else:
        dist.destroy_process_group()
    gc.collect()
    assert seen() is None


@on_ranks(2)
def test_a_group_that_is_destroyed_with_a_pending_operation(
    dist: Any, rank: int, size: int
) -> None:
    """The end of the group waits a moment for the operation, whose other rank is late."""
    group = dist.new_group([0, 1])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    if rank == 1:
        time.sleep(0.3)
    dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    assert tensor.item() == 4.0


@on_ranks(2, fresh=True, env={"HOSTNCCL_DEADLOCK_MS": "10000", "PYNCCL_TIMEOUT": "0.3"})
def test_timeout_of_the_group(dist: Any, rank: int, size: int) -> None:
    """An operation without all ranks ends at its group's timeout, regardless of the environment;
    other groups continue.
    """
    pg = dist.new_group()
    dist.set_timeout(timedelta(seconds=1), pg)
    if rank == 0:
        started = time.monotonic()
        text = "^all_reduce on rank 0: Timed out after 1 seconds.* rank 1 has not issued #1 all_re"
        with pytest.raises(dist.DistBackendError, match=text) as raised:
            dist.all_reduce(torch.ones(1), group=pg)
        assert time.monotonic() - started > 0.9
        assert raised.value.missing_ranks == [1]
        with pytest.raises(RuntimeError, match="rank 1 has not issued") as again:
            dist.all_reduce(torch.ones(1), group=pg)
        assert again.value.missing_ranks == [1]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


@on_ranks(2)
def test_a_barrier_has_no_result(dist: Any, rank: int, size: int) -> None:
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.result() == work.get_future().wait() == []


@on_ranks(2, fixture="any_world", env={"PYNCCL_ON_TIMEOUT": "raise"})
def test_a_timeout_names_the_missing_ranks(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    raised_on_0 = str(tmp_path / "raised")

    pg = dist.new_group()
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=pg)
    dist.set_timeout(timedelta(seconds=1), pg)
    if rank != 1:
        text = r"Timed out after 1 seconds.*rank 1 has not issued #2 all_reduce"
        work = dist.all_reduce(tensor, group=pg, async_op=True)
        with pytest.raises(dist.DistBackendError, match=text) as raised:
            work.wait(timedelta(seconds=20))
        assert raised.value.missing_ranks == [1]
        Path(raised_on_0).touch()
    else:
        wait_for(raised_on_0)  # outside pynccl
        pg.abort()


def _policies(dist: Any, rank: int, size: int) -> list[Any]:
    from pynccl import nccl

    found = []
    for chosen in (None, "raise"):
        group = dist.new_group(pg_options=nccl.Config(on_timeout=chosen))
        dist.all_reduce(torch.ones(1), group=group)
        found += [stream.comm.on_timeout for stream in group.comm_streams().values()]
    return found


def test_a_timeout_on_gpus_ends_the_process(any_world: World, provider: str) -> None:
    """There wait() only orders streams, so the data could be used before an error is raised."""
    default = "raise" if provider == "host" else "abort"
    assert any_world(1, _policies) == [[default, "raise"]]


@on_ranks(2, fixture="any_world", env={"PYNCCL_CHECK": "every"})
def test_calls_are_compared(dist: Any, rank: int, size: int) -> None:
    pg = dist.new_group()
    tensor = torch.ones(4 + rank % 2)
    text = r"different collectives as #1: rank 0 all_reduce\(.*count=4.*; rank 1 .*count=5"
    with pytest.raises(dist.DistBackendError, match=text):
        dist.all_reduce(tensor, group=pg)
    dist.all_reduce(torch.ones(4), group=pg)


@on_ranks(2)
def test_timeout_of_a_group_with_two_threads(dist: Any, rank: int, size: int) -> None:
    """Both threads that wait in the group raise."""
    pg = dist.new_group()
    dist.set_timeout(timedelta(seconds=1), pg)

    def call() -> None:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(2), group=pg)

    if rank == 0:
        in_threads(call, call)
    dist.barrier()


def _barriers(dist: Any, rank: int, size: int) -> list[tuple[float, float]]:
    """Return when this rank entered and left each barrier."""
    times = []
    for call in (dist.barrier, dist.monitored_barrier, lambda: dist.barrier(async_op=True).wait()):
        time.sleep(0.1 * rank)
        began = time.monotonic()
        call()
        times.append((began, time.monotonic()))
    dist.barrier(timeout=timedelta(seconds=20))
    dist.barrier(dist.group.WORLD)
    with pytest.raises(TypeError, match="timedelta"):
        dist.barrier(timeout=1)
    pg = dist.new_group([0, 1])
    if rank < 2:
        dist.monitored_barrier(pg, timedelta(seconds=20))
        with pytest.warns(UserWarning, match="specify timeout arg as a timedelta"):
            dist.monitored_barrier(pg, 20.0)
    else:
        with pytest.warns(UserWarning, match="monitored_barrier"):
            dist.monitored_barrier(pg)
    dist.all_reduce(torch.ones(1))
    return times


def test_barriers(world: World) -> None:
    times = world(3, _barriers)
    for moments in zip(*times, strict=True):
        assert max(began for began, _ in moments) <= min(ended for _, ended in moments)


def _missing(dist: Any, rank: int, size: int, wait_all_ranks: bool, left: str) -> str:
    """Rank 0 arrives after rank 3 has given up, and still counts it as present."""
    if rank in (1, 2):
        return ""
    if rank == 0:
        wait_for(left)
    limit = timedelta(seconds=0.5)
    with pytest.raises(dist.DistBackendError) as caught:
        dist.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
    if rank == 3:
        Path(left).touch()
    return str(caught.value)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_monitored_barrier_names_the_missing(
    world: World, tmp_path: Path, wait_all_ranks: bool
) -> None:
    first, _, _, last = world(4, _missing, wait_all_ranks, str(tmp_path / "left"))
    missing = "Ranks 1, 2" if wait_all_ranks else "Rank 1"
    assert f"{missing} failed to pass monitoredBarrier in 500 ms" in first
    assert "Rank 3 successfully reached monitoredBarrier" in last
