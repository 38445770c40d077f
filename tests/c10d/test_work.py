"""Proves Work, futures, sequence numbers, timeouts and splits of groups as torch defines them."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pynccl.c10d
from pynccl import nccl
from tests.c10d.in_torch import backend_of, cpu_communicator, set_event, wait_event
from tests.c10d.versions import needs_torch
from tests.support.blocking import in_threads, together, wait_until
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

_LONG = timedelta(seconds=20)


@on_ranks(2, 4, fixture="each_world")
def test_asynchronous_operations_in_order(dist: Any, rank: int, size: int) -> None:
    """Issued before any wait, with synchronous ones in between."""
    tensors = [torch.full((n + 1,), float(rank)) for n in range(50)]
    works = []
    for n, tensor in enumerate(tensors):
        if n % 10 == 9:
            dist.all_reduce(tensor)
            assert tensor[0].item() == float(sum(range(size)))
        else:
            works.append(dist.all_reduce(tensor, async_op=True))
    for work in reversed(works[10:]):
        work.wait()
    for done in torch.futures.wait_all([work.get_future() for work in works[:10]]):
        assert done[0][-1].item() == sum(range(size))
    assert all(tensor[-1].item() == float(sum(range(size))) for tensor in tensors)
    # Dropped without a wait, with the tensor.
    for _ in range(10):
        dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()


@on_ranks(2, fixture="host_world")
def test_work_of_a_late_rank(dist: Any, rank: int, size: int) -> None:
    tensor = torch.full((3,), rank + 1.0)
    dist.barrier()
    if rank == 1:
        dist.recv(torch.empty(1), 0)  # until rank 0 has checked
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        future = work.get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        assert not work.is_completed()
        assert not work.is_success()
        assert work.exception() is None
        assert not future.done()
        text = "rank 0: Timed out waiting 20ms for all_reduce"
        with pytest.raises(dist.DistBackendError, match=text):
            work.wait(timedelta(milliseconds=20))
        dist.send(torch.ones(1), 1)
        assert doubled.wait().tolist() == [6.0] * 3
        assert future.value()[0] is not None
    assert work.wait(timedelta(seconds=20))
    work.synchronize()
    assert work.is_success()
    assert work.get_future().wait()[0].tolist() == [3.0] * 3


@on_ranks(2)
def test_properties_of_a_backend(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend_of()._get_sequence_number_for_group() == 2
    assert backend_of().name() == "pynccl"
    assert backend_of().options._timeout == timedelta(seconds=30)
    assert dist.get_backend(dist.new_group([0, 1])) == "pynccl"
    assert dist.get_backend_config() == "cpu:pynccl,cuda:pynccl"


@on_ranks(2, fixture="host_world")
def test_barrier_with_device_ids(dist: Any, rank: int, size: int) -> None:
    dist.barrier(device_ids=[rank])  # no such accelerator: ignored, as by gloo


@on_ranks(2, fixture="host_world")
def test_source_of_other_operations_than_a_receive(dist: Any, rank: int, size: int) -> None:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(RuntimeError, match="may only be called on work"):
        work._source_rank()
    work.wait()


@on_ranks(2)
def test_options_of_several_groups(rank: int, size: int) -> None:
    given = pynccl.c10d.options(is_high_priority_stream=True)
    groups = [dist.new_group(timeout=timedelta(seconds=n), pg_options=given) for n in (30, 20)]
    options = [group._get_backend(torch.device("cpu")).options for group in groups]
    assert [one._timeout.total_seconds() for one in options] == [30, 20]
    assert [one.group_name for one in options] == [group.group_name for group in groups]
    assert all(one.is_high_priority_stream for one in options)


@on_ranks(2)
def test_a_callback_can_issue(rank: int, size: int) -> None:
    """A callback that issues an operation, like DDP's communication hooks."""
    tensor = torch.full((3,), rank + 1.0)

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        value = future.value()[0]
        dist.all_reduce(value)
        return value

    def again_with_a_future(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        return dist.all_reduce(future.value(), async_op=True).get_future().wait()[0]

    work = dist.all_reduce(tensor, async_op=True)
    chained = work.get_future().then(again).then(again_with_a_future)
    others = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]
    assert chained.wait().tolist() == [12.0] * 3
    for other in others:
        other.wait()
    dist.barrier()


@on_ranks(4)
def test_split(rank: int, size: int) -> None:
    group = dist.distributed_c10d._get_default_group()
    half = list(range(size // 2)) if rank < size // 2 else list(range(size // 2, size))
    assert backend_of().supports_splitting
    made = group.split_group(
        half, timedelta(seconds=20), backend_of().options, f"half{half[0]}", "a half"
    )
    tensor = torch.full((2,), float(rank))
    made.allreduce([tensor]).wait()
    assert (made.rank(), made.size()) == (rank % (size // 2), size // 2)
    made.shutdown()
    assert tensor.tolist() == [sum(half)] * 2


@on_ranks(2, init={"timeout": timedelta(seconds=10)})
def test_split_after_asynchronous_operations(rank: int, size: int) -> None:
    """The split is ordered after asynchronous operations issued before it."""
    dist.all_reduce(torch.ones(1))
    tensors = [torch.ones(1), torch.ones(1)]
    if rank == 1:
        time.sleep(0.3)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 1:
        time.sleep(0.3)
    from pynccl.c10d import options

    given = options(config=nccl.Config(on_timeout="abort"))
    given._timeout = timedelta(seconds=20)
    group = dist.distributed_c10d._get_default_group()
    made = group.split_group(list(range(size)), timedelta(seconds=20), given, "all", "all")
    for work in works:
        work.wait()
    assert [tensor.item() for tensor in tensors] == [size, size]
    assert cpu_communicator(made).on_timeout == "abort"  # of the options given
    made.shutdown()


@on_ranks(4 if FULL else 2, timeout=60)
def test_the_profiler_records_the_end_of_an_operation(rank: int, size: int) -> None:
    """An event ends before the wait for its operation, after which the profiler may stop."""
    profiler = torch.autograd.profiler
    for _ in range(400 if FULL else 100):
        with profiler.profile() as profile:
            dist.all_reduce(torch.ones(1), async_op=True).wait()
            with profiler.record_function("waited"):
                pass
        events = {event.name: event for event in profile.function_events}
        assert events["pynccl:all_reduce"].is_async
        assert events["pynccl:all_reduce"].time_range.end <= events["waited"].time_range.start


def _connect(timeout: timedelta) -> None:
    dist.barrier()
    dist.distributed_c10d._get_default_group().set_timeout(timeout)


@needs_torch(2, 14, "_add_ephemeral_timeout() of all backends")
@on_ranks(2, fresh=True)
def test_temporary_timeout(rank: int, size: int) -> None:
    _connect(timedelta(seconds=1))
    backend_of()._add_ephemeral_timeout(timedelta(seconds=20))
    if rank == 1:
        time.sleep(3)
    dist.barrier()  # rank 0 waits for longer than the group's timeout
    if rank == 1:
        wait_event("raised")
        return
    with pytest.raises(dist.DistBackendError, match="waited for rank 1"):
        dist.all_reduce(torch.ones(1))  # the extension no longer applies
    set_event("raised")


@on_ranks(2)
def test_timeout_of_one_operation_can_be_longer(rank: int, size: int) -> None:
    _connect(timedelta(seconds=1))
    if rank == 1:
        time.sleep(2)
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=20)
    dist.distributed_c10d._get_default_group().allreduce([torch.ones(1)], options).wait()


@needs_torch(2, 14, "gather_single()")
@on_ranks(2)
def test_gather_into_one_tensor(rank: int, size: int) -> None:
    output = torch.empty(2 * size) if rank == 1 else None
    dist.gather_single(torch.full((2,), float(rank)), output, dst=1)
    if rank != 1:
        return
    assert torch.equal(output, torch.arange(size).repeat_interleave(2).float())
    with pytest.raises(ValueError, match="gather_tensor: expected 4 elements, got 3"):
        dist.gather_single(torch.ones(2), torch.empty(3), dst=1)


def _wakeups() -> int:
    """How often other threads of this process have slept and continued."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != threading.get_native_id():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                status = (task / "status").read_text()
                counted = re.search(r"^voluntary.*\s(\d+)$", status, re.M)
                assert counted
                found += int(counted[1])
    return found


@on_ranks(1)
def test_synchronous_operations_wake_no_thread(rank: int, size: int) -> None:
    tensor, calls = torch.ones(1), 2000
    dist.all_reduce(tensor, async_op=True).wait()  # from here on there is a thread
    before = _wakeups()
    for _ in range(calls):
        dist.all_reduce(tensor)
    assert _wakeups() - before < calls / 10


@on_ranks(2)
def test_a_wait_runs_its_operation(rank: int, size: int) -> None:
    """Operations whose callers wait immediately run on these threads and wake hardly any other.

    Not on a busy machine that takes the cores away between the call and the wait.
    """
    x, calls, both = torch.ones(1), 100, torch.zeros(1)
    rounds: list[tuple[int, int]] = []
    while len(rounds) < 50 and not both.item():
        before = _wakeups()
        with nccl.trace() as traced:
            for _ in range(calls):
                dist.all_reduce(x, async_op=True).wait()
        woken, trace = _wakeups() - before, traced.process
        assert trace is not None
        rounds.append((sum(one.thread == trace.pid for one in trace.operations), woken))
        both.fill_(any(own > calls / 2 > woken for own, woken in rounds))
        dist.all_reduce(both, dist.ReduceOp.MIN)
    assert both.item(), rounds


@on_ranks(2)
def test_operations_begin_without_a_wait(rank: int, size: int) -> None:
    """Including after many whose callers waited immediately."""
    x = torch.ones(1)
    for _ in range(3):
        for _ in range(50):
            dist.all_reduce(x, async_op=True).wait()
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        wait_until(works[-1].is_completed)
        assert dist.all_reduce(x, async_op=True).get_future().wait()
        assert dist.all_reduce(x, async_op=True).wait(timedelta(seconds=20))
    works = [dist.all_reduce(x, async_op=True) for _ in range(8)]
    in_threads(*(work.wait for work in [*reversed(works), *works[::3]]))
    assert all(work.is_success() for work in works)


@on_ranks(2)
def test_a_callback_does_not_run_in_a_wait(rank: int, size: int) -> None:
    """The waiting thread may hold a lock that the callback needs."""
    lock, x = threading.Lock(), torch.ones(1)
    dist.all_reduce(x)
    if rank == 1:
        wait_event("has a callback")
        dist.all_reduce(x)
        return
    with lock:
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future().then(lambda _: lock.acquire() and lock.release())
        set_event("has a callback")
        work.wait()
    future.wait()


@on_ranks(2)
def test_every_waiter_of_a_failed_operation_raises(rank: int, size: int) -> None:
    """On the thread that runs it, on one that waits for that thread, and with a time limit."""
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        wait_event("raised")
        return
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.5)
    work = backend_of().allreduce([torch.ones(1)], options)
    for error in together(work.wait, work.wait, lambda: work.wait(_LONG)):
        assert isinstance(error, dist.DistBackendError)
        assert "all_reduce" in str(error)
    set_event("raised")
