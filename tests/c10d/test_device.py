"""Proves the backend with CUDA tensors: every operation, stream order, no premature reuse of
memory, graphs, and training with DDP.

On the test double, torch's tensors are in the double's memory (tests/doubles). Its streams run
independently, so an operation that is not ordered after another sees wrong values.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pynccl.c10d
from pynccl import nccl
from tests.c10d import test_against_torch as against_torch
from tests.c10d import test_collectives as collectives
from tests.c10d import test_messages as messages
from tests.c10d import test_overlaps as overlaps
from tests.c10d import test_work as works
from tests.c10d.in_torch import backend_of, run_in_torch, set_event, wait_event
from tests.c10d.training import Values, batches, make_model, values
from tests.support import gpu
from tests.support.blocking import together
from tests.support.launcher import Launcher, Outcome
from tests.support.ranks import of_ranks, on_ranks
from tests.support.tier import FULL

World = Callable[..., list[Any]]

pytestmark = [pytest.mark.gpu, pytest.mark.long]

_DOUBLE = "CUDA_DOUBLE_LIBRARIES" in os.environ
_COUNT = 1000
_LATE = 0.2  # seconds
_LONG = timedelta(seconds=20)

only_on_the_double = pytest.mark.skipif(not _DOUBLE, reason="it reads the double's record")


def _keep_busy(seconds: float = _LATE) -> None:
    """Keep the current stream busy."""
    gpu.keep_busy(seconds, torch.cuda.current_stream().cuda_stream, torch.cuda.current_device())


def _full(value: float, count: int = _COUNT) -> torch.Tensor:
    return torch.full((count,), float(value), device="cuda")


def _connected(value: float = 0.0) -> torch.Tensor:
    """Connect the ranks, and return a tensor when the GPU is idle.

    The kernel of a multiplication is launched once: CUDA loads it then, which can block while
    another kernel runs.
    """
    dist.all_reduce(_full(0))
    tensor = _full(value)
    tensor * 2
    torch.cuda.synchronize()
    return tensor


# Every operation, through the functions of other tests

_SHARED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "unequal parts": (collectives.test_unequal_parts, (False,)),
    "unequal parts, asynchronous": (collectives.test_unequal_parts, (True,)),
    "coalesced": (collectives.test_coalescing, (False,)),
    "coalesced, asynchronous": (collectives.test_coalescing, (True,)),
    "operators": (collectives.test_operators_of_nccl, ()),
    "other dtypes": (collectives.test_dtypes_that_nccl_lacks, ()),
    "lists of lists": (collectives.test_lists_of_tensors, ()),
    "any source": (collectives.test_receive_from_any, ()),
    "coalesced operators": (collectives.test_operators_of_a_coalesced_call, ()),
    "ring": (messages.test_ring_without_a_batch, (1,)),
    "batch": (messages.test_batch, ()),
    "small messages": (messages.test_two_ranks_send_small_tensors_first, ()),
    "overlaps": (overlaps.test_overlaps_are_rejected, ()),
    "many at once": (works.test_asynchronous_operations_in_order, ()),
    "as over gloo": (against_torch.compare_with_gloo, ("", against_torch.every_call())),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _SHARED)
@on_ranks(2, fixture="device_world", init={"backend": "cpu:gloo,cuda:pynccl"})
def test_every_operation(rank: int, size: int, name: str) -> None:
    function, args = _SHARED[name]
    torch.set_default_device("cuda")
    try:
        of_ranks(function)(dist, rank, size, *args)
    finally:
        torch.set_default_device(None)


def _objects_and_barriers(rank: int, size: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    dist.barrier()
    dist.all_reduce(_full(1))
    made = pynccl.c10d.communicator(None, device)
    assert made is not None
    dist.barrier()
    assert pynccl.c10d.communicator(None, torch.device("cuda")) is made
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    received: list[Any] = [rank]
    dist.broadcast_object_list(received, 1)
    assert received == [1]
    barriers: list[Any] = [{"device_ids": [torch.cuda.current_device()]}]
    if "gloo" not in dist.get_backend_config():
        barriers.append({})
    for number, options in enumerate(barriers):
        began = time.monotonic()
        if rank == 0:
            set_event(f"barrier {number}")
        else:
            wait_event(f"barrier {number}")
            _keep_busy()
        dist.barrier(**options)
        assert rank == 0 or time.monotonic() - began > _LATE / 2  # the host waits
    dist.barrier(device_ids=[torch.cuda.current_device()])
    assert pynccl.c10d.communicator(None, device) is made


@pytest.mark.parametrize("backend", ["pynccl", "cuda:pynccl", "cpu:gloo,cuda:pynccl"])
def test_objects_and_barriers(device_world: World, backend: str) -> None:
    device_world(2, _objects_and_barriers, init={"backend": backend})


def _two_devices(rank: int, size: int) -> None:
    """One after the other, in the same group."""
    for device in (rank, rank + size):
        tensor = torch.full((3,), rank + 1.0, device=f"cuda:{device}")
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0] * 3
    with pytest.raises(ValueError, match=f"output_tensor: it is on cuda:{device}, but other "):
        dist.all_gather_into_tensor(tensor.repeat(size), torch.ones(3, device=f"cuda:{rank}"))


def test_several_devices_of_a_rank(device_world: World) -> None:
    gpu.require_devices(4)
    device_world(2, _two_devices)


# The order of streams


def _waits_for_the_input(rank: int, _size: int) -> None:
    x = _connected()
    if rank == 1:
        wait_event("issued")
    _keep_busy()
    x.fill_(rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        set_event("issued")
    work.wait()
    assert x.tolist() == [3.0] * _COUNT
    assert work.is_completed()
    assert work.is_success()


def _orders_what_follows(rank: int, _size: int) -> None:
    x = _connected(rank + 1)
    if rank == 1:
        wait_event("issued")
    work = dist.all_reduce(x, async_op=True)
    work.wait()  # the stream waits, not the caller
    y = x * 2
    if rank == 0:
        assert not work.is_completed()
        set_event("issued")
    assert y.tolist() == [6.0] * _COUNT


def _on_the_current_stream(rank: int, _size: int) -> None:
    """A synchronous operation between kernels on a stream other than the default stream."""
    x = _connected()
    y = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        _keep_busy(_LATE * (rank + 1))
        x.fill_(rank + 1.0)
        dist.all_reduce(x)
        y.copy_(x)
        torch.cuda.current_stream().synchronize()
    assert y.tolist() == [3.0] * _COUNT


def _waited_for_on_another_stream(rank: int, _size: int) -> None:
    x = _connected(rank + 1)
    y = torch.zeros_like(x)
    torch.cuda.synchronize()
    if rank == 1:
        _keep_busy()
    work = dist.all_reduce(x, async_op=True)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        work.wait()
        y.copy_(x)
    other.synchronize()
    assert y.tolist() == [3.0] * _COUNT


def _futures(rank: int, _size: int) -> None:
    x = _connected(rank + 1)
    own = torch.cuda.current_stream().cuda_stream
    if rank == 1:
        wait_event("issued")
    work = dist.all_reduce(x, async_op=True)
    streams = []

    def double(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        streams.append(torch.cuda.current_stream().cuda_stream)
        return future.value()[0] * 2

    future = work.get_future()
    doubled = future.then(double)
    assert doubled.done()
    if rank == 0:
        assert not work.is_completed()
        set_event("issued")
    assert streams != [own]
    later = doubled.wait() + 1
    assert later.tolist() == [7.0] * _COUNT
    assert future.wait()[0].tolist() == [3.0] * _COUNT


def _hooked(rank: int, _size: int) -> None:
    """A callback that issues an operation, like DDP's communication hooks."""
    x = _connected(rank + 1)
    if rank == 1:
        _keep_busy()
    first = dist.all_reduce(x, async_op=True).get_future()

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        value = future.value()[0]
        value.mul_(2)
        return dist.all_reduce(value, async_op=True).get_future().wait()[0]

    assert first.then(again).wait().tolist() == [12.0] * _COUNT


def _messages(rank: int, _size: int) -> None:
    x = _connected(rank + 1)
    y = torch.zeros_like(x)
    torch.cuda.synchronize()
    _keep_busy(_LATE * (rank + 1))
    x.mul_(10)
    operations = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    y.mul_(2)
    assert y.tolist() == [20.0 * (2 - rank)] * _COUNT
    _keep_busy()
    x.mul_(10)
    sent, received = dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)
    assert received is not None
    assert received.source_rank() == 1 - rank
    received.wait()
    y.mul_(2)
    assert y.tolist() == [200.0 * (2 - rank)] * _COUNT
    assert sent is not None
    sent.wait()


def _coalesced(rank: int, _size: int) -> None:
    tensors = [_connected(), _connected()]
    torch.cuda.synchronize()
    _keep_busy(_LATE * (rank + 1))
    for tensor in tensors:
        tensor.fill_(rank + 1.0)
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        tensor.mul_(2)
        assert tensor.tolist() == [6.0] * _COUNT


def _lists(rank: int, size: int, asynchronous: bool) -> None:
    """Equal sizes: the copies to and from the flat buffer are ordered like the operation."""
    x = _connected()
    outputs, output = [torch.zeros_like(x) for _ in range(size)], torch.zeros_like(x)
    torch.cuda.synchronize()
    _keep_busy(_LATE * (rank + 1))
    x.fill_(rank + 1.0)
    work = dist.all_gather(outputs, x, async_op=asynchronous)
    if work:
        work.wait()
    inputs = [2 * tensor for tensor in outputs]
    work = dist.reduce_scatter(output, inputs, async_op=asynchronous)
    if work:
        work.wait()
    del inputs
    output.add_(1)
    assert [tensor.tolist() for tensor in outputs] == [[r + 1.0] * _COUNT for r in range(size)]
    assert output.tolist() == [2.0 * size * (rank + 1) + 1] * _COUNT


def _synchronous_lists(rank: int, size: int) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        _lists(rank, size, False)


def _asynchronous_lists(rank: int, size: int) -> None:
    _lists(rank, size, True)


_ORDERS = {
    function.__name__.strip("_"): function
    for function in (
        _waits_for_the_input,
        _orders_what_follows,
        _on_the_current_stream,
        _waited_for_on_another_stream,
        _futures,
        _hooked,
        _messages,
        _coalesced,
        _synchronous_lists,
        _asynchronous_lists,
    )
}


@pytest.mark.parametrize("order", _ORDERS)
def test_order_of_streams(device_world: World, order: str) -> None:
    device_world(2, _ORDERS[order])


@only_on_the_double
@on_ranks(2, fixture="device_world")
def test_lists_of_one_size_are_one_collective(rank: int, size: int) -> None:
    from tests.doubles import library

    x, factor = _connected(rank + 1), dist._make_nccl_premul_sum(2.0)
    buffer = torch.zeros(size, _COUNT, device="cuda")
    apart, adjacent = [torch.zeros_like(x) for _ in range(size)], list(buffer.unbind())
    short = [_full(0, n + 1) for n in range(size)]
    torch.cuda.synchronize()
    with library.record() as record:
        dist.all_gather(apart, x)
        dist.reduce_scatter(x, apart, factor)
    names = [name for name in record.names() if name.startswith("nccl")]
    assert names.count("ncclAllGather") == names.count("ncclReduceScatter") == 1
    assert not {"ncclBroadcast", "ncclReduce", "ncclGroupStart"}.intersection(names)
    assert x.tolist() == [2.0 * size * (rank + 1)] * _COUNT
    with library.record() as record:
        dist.all_gather(adjacent, x)
    (call,) = record.named("ncclAllGather")
    assert call.arguments[1] == buffer.data_ptr()  # nothing is copied
    assert [row[0].item() for row in buffer] == [2.0 * size * (r + 1) for r in range(size)]
    with library.record() as record:
        dist.all_gather(short, _full(rank, rank + 1))
    assert len(record.named("ncclBroadcast")) == size
    assert [tensor.tolist() for tensor in short] == [[float(r)] * (r + 1) for r in range(size)]


@only_on_the_double
@on_ranks(2, fixture="device_world")
def test_events_are_recorded_again(rank: int, size: int) -> None:
    from tests.doubles import library

    x = _connected()
    for _ in range(2):
        dist.all_reduce(x, async_op=True).wait()
    torch.cuda.synchronize()
    with library.record() as record:
        for _ in range(5):
            dist.all_reduce(x, async_op=True).wait()
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
    names = record.names()
    assert names.count("cuEventRecord") >= 16
    assert names.count("cuEventCreate") <= 2  # three are in progress at once
    assert not names.count("cuEventDestroy_v2") + names.count("cuEventDestroy")


def _priority(_rank: int, _size: int, high: bool) -> int:
    """Of the stream of asynchronous operations."""
    import ctypes

    from tests.doubles import library

    options = pynccl.c10d.options(is_high_priority_stream=high)
    group = dist.new_group(backend="pynccl", pg_options=options)
    x = _connected()
    dist.all_reduce(x, group=group)
    with library.record() as record:
        dist.all_reduce(x, group=group, async_op=True).wait()
        dist.all_reduce(x, group=group)
    asynchronous, synchronous = (call.stream for call in record.named("ncclAllReduce"))
    assert synchronous == torch.cuda.current_stream().cuda_stream
    assert asynchronous is not None
    priority = ctypes.c_int()
    library.driver()("cuStreamGetPriority", asynchronous, ctypes.byref(priority))
    return priority.value


@only_on_the_double
def test_priority_of_the_stream(device_world: World) -> None:
    assert device_world(2, _priority, False) == [0, 0]
    assert max(device_world(2, _priority, True)) < 0


# Memory


def _dropped(rank: int, _size: int) -> None:
    """Without references to tensor and work: the allocator must not reuse the memory yet."""
    for _ in range(3):
        x = _connected(rank + 1)
        if rank == 1:
            _keep_busy()
        y = torch.zeros(2 * _COUNT, device="cuda")
        dist.all_reduce(x, async_op=True)
        del x
        work = dist.all_gather_into_tensor(y, _full(rank + 1), async_op=True)
        others = [_full(7) for _ in range(4)]
        work.wait()
        assert y.tolist() == [1.0] * _COUNT + [2.0] * _COUNT
        assert [int(other.sum()) for other in others] == [7 * _COUNT] * 4


def _factor(rank: int, _size: int) -> None:
    """NCCL reads a factor in device memory when the operation runs."""
    x = _connected(rank + 1)
    factor = torch.full((1,), 0.5, device="cuda")
    torch.cuda.synchronize()
    if rank == 1:
        _keep_busy()
    dist.all_reduce(_full(0), async_op=True)  # the next one waits for it
    work = dist.all_reduce(x, dist._make_nccl_premul_sum(factor), async_op=True)
    del factor
    others = [torch.full((1,), 99.0, device="cuda") for _ in range(4)]
    work.wait()
    assert x.tolist() == [1.5] * _COUNT
    assert others[0].item() == 99.0


@pytest.mark.parametrize("function", [_dropped, _factor])
def test_memory_of_an_operation_is_kept(device_world: World, function: Any) -> None:
    device_world(2, function)


# Errors and ends


@on_ranks(2, fixture="device_world")
def test_timeout_of_a_wait(rank: int, size: int) -> None:
    x = _connected(rank + 1)
    if rank == 1:
        wait_event("raised")
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 20ms for all_reduce"):
            work.wait(timedelta(milliseconds=20))
        set_event("raised")
    assert work.wait(timedelta(seconds=20))
    assert work.is_completed()
    assert x.tolist() == [3.0] * _COUNT


@on_ranks(2, fixture="device_world")
def test_several_threads_wait_for_a_work(rank: int, size: int) -> None:
    """It releases its tensors once."""
    for _ in range(20):
        tensors = [_full(rank + 1, 1) for _ in range(500)]
        work = dist.group.WORLD.allreduce_coalesced(tensors)
        assert together(work.wait, work.wait, work.wait, work.wait) == [True] * 4
        assert [tensor.item() for tensor in tensors] == [3.0] * 500


_RAISE = {"PYNCCL_ON_TIMEOUT": "raise"}


def _used_too_early(rank: int, _size: int, chosen: str | None, how: str) -> list[str]:
    """Return the data that a program sees of an operation without the other rank."""
    options = pynccl.c10d.options(config=nccl.Config(on_timeout=chosen))
    group = dist.new_group(pg_options=options)
    x = _full(rank + 1)
    if how == "message":  # its communicator is created here: that has an error of its own
        (dist.recv if rank == 0 else dist.send)(x, 1 - rank, group)
    else:
        dist.all_reduce(x, group=group)
    torch.cuda.synchronize()
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        process = Path("/proc", store.get("process of rank 0").decode())
        while process.exists() and not store.check(["seen"]):
            time.sleep(0.02)
        return []
    store.set("process of rank 0", str(os.getpid()))
    group.set_timeout(timedelta(seconds=1))
    if how == "message":
        work = dist.irecv(x, 1, group)
    else:
        work = dist.all_reduce(x, group=group, async_op=how == "work")
    if work is not None:
        work.wait()  # orders streams
    y = x + 1
    torch.cuda.synchronize()
    used = [f"used {y[0].item()}"]
    end = time.monotonic() + 20
    while time.monotonic() < end and len(used) == 1:
        try:
            if work is not None:
                work.wait()
            else:
                dist.all_reduce(x, group=group)
        except dist.DistBackendError as error:
            used.append(str(error))
        time.sleep(0.01)
    if work is not None:
        with pytest.raises(dist.DistBackendError, match="within 1 s"):
            work.synchronize()
        with pytest.raises(Exception, match="within 1 s"):
            work.get_future().wait()
        assert not work.is_success()
    store.set("seen", "")
    return used


def _outcomes(launch: Launcher, tmp_path: Path, env: dict[str, str], *args: Any) -> list[Outcome]:
    url = f"file://{tmp_path}/store"
    return launch.outcomes(
        2, run_in_torch, _used_too_early, url, {}, args, provider="cuda", env=env
    )


@pytest.mark.parametrize("how", ["call", "work", "message"])
def test_a_timeout_ends_the_process_before_the_data_is_used(
    launch: Launcher, tmp_path: Path, how: str
) -> None:
    absent = _outcomes(launch, tmp_path, {}, None, how)[0]
    assert "SIGABRT" in absent.died, absent


@pytest.mark.parametrize(
    ("chosen", "how"),
    list(itertools.product(("configuration", "environment"), ("call", "work")))
    if FULL
    else [("configuration", "work"), ("environment", "call")],
)
def test_a_timeout_raises_if_configured(
    launch: Launcher, tmp_path: Path, chosen: str, how: str
) -> None:
    given, env = ("raise", {}) if chosen == "configuration" else (None, _RAISE)
    absent = _outcomes(launch, tmp_path, env, given, how)[0]
    assert not absent.died, absent
    assert absent.error is None, absent
    assert absent.value[0].startswith("used")
    assert "within 1 s" in absent.value[1]


@on_ranks(2, fixture="device_world")
def test_a_signal_handler_aborts_a_waited_operation(rank: int, size: int) -> None:
    """An abort ends the kernel, which the wait must not report as success."""

    def abort(*_: object) -> None:
        backend_of(device="cuda").abort()
        torch.cuda.synchronize()

    x = _connected(rank + 1)
    if rank == 1:
        set_event("connected")
        wait_event("raised")
        return
    wait_event("connected")
    signal.signal(signal.SIGALRM, abort)
    work = dist.all_reduce(x, async_op=True)
    signal.setitimer(signal.ITIMER_REAL, _LATE)
    with pytest.raises(dist.DistBackendError, match=r"all_reduce.*aborted"):
        work.wait(timedelta(seconds=20))
    set_event("raised")


@pytest.mark.parametrize("async_op", [False, True])
@on_ranks(2, fixture="device_world")
def test_destroy_waits_for_operations(rank: int, size: int, async_op: bool) -> None:
    """Destroy while an operation runs; the operation completes first."""
    x = _connected(rank + 1)
    if rank == 1:
        _keep_busy()
    work = dist.all_reduce(x, async_op=async_op)
    message = dist.isend(x, 1) if rank == 0 else dist.irecv(torch.empty_like(x), 0)
    dist.destroy_process_group()
    if work is not None:
        work.wait()
        assert work.is_success()
    assert x.tolist() == [3.0] * _COUNT
    assert message is not None
    assert message.is_completed()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def _destroyed_alone(rank: int, _size: int, async_op: bool) -> float:
    x = _connected(rank + 1)
    began = time.monotonic()
    if rank == 0:
        dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=1))
        dist.all_reduce(x, async_op=async_op)
        dist.destroy_process_group()
        torch.cuda.synchronize()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return time.monotonic() - began


@pytest.mark.parametrize("async_op", [False, True])
def test_destroy_ends_an_operation_that_hangs(device_world: World, async_op: bool) -> None:
    assert device_world(2, _destroyed_alone, async_op, env=_RAISE)[0] < 20


# Groups of a device


@on_ranks(2, fixture="device_world", init={"device_id": True})
def test_bound_device(rank: int, size: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    made = pynccl.c10d.communicator(None, device)
    assert made is not None  # before any operation
    group = dist.new_group([0, 1])
    x = _full(rank + 1)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [3.0] * _COUNT
    half = dist.split_group(split_ranks=[[0], [1]])
    assert half is not None
    assert (half.rank(), half.size()) == (0, 1)
    x = _full(rank + 1)
    dist.all_reduce(x, group=half)
    assert x.tolist() == [rank + 1.0] * _COUNT
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
        assert x.tolist() == [1.0] * _COUNT
    dist.barrier()
    assert pynccl.c10d.communicator(None, device) is made


# Graphs and training


@pytest.mark.parametrize("async_op", [False, True])
@on_ranks(2, fixture="device_world")
def test_capture(rank: int, size: int, async_op: bool) -> None:
    x, y = _connected(rank + 1), _full(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2)
        work = dist.all_reduce(x, async_op=async_op)
        if work is not None:
            work.wait()
        y.copy_(x)
        del work
    torch.cuda.synchronize()
    assert x.tolist() == [rank + 1.0] * _COUNT  # nothing has run
    for expected in (6.0, 24.0, 96.0):
        if rank == 1:
            _keep_busy()
        graph.replay()
        assert y.tolist() == [expected] * _COUNT
    graph.reset()


@on_ranks(2, fixture="device_world")
def test_captured_work_without_a_wait(rank: int, size: int) -> None:
    """The graph runs it, and later captures and operations still work."""
    x, works, graphs = _connected(rank + 1), [], []
    torch.cuda.synchronize()
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            works.append(dist.all_reduce(x, async_op=True))
        graphs.append(graph)
    for graph in graphs:
        x.fill_(rank + 1)
        graph.replay()
        assert x.tolist() == [3.0] * _COUNT
    dist.all_reduce(x, async_op=True).wait()
    assert x.tolist() == [6.0] * _COUNT
    works.clear()
    for graph in graphs:
        graph.reset()


@on_ranks(2, fixture="device_world")
def test_a_captured_work_is_waited_for_in_its_capture(rank: int, size: int) -> None:
    """A later wait, or one in another capture, is an error that changes nothing."""
    x, graphs = _connected(rank + 1), [torch.cuda.CUDAGraph() for _ in range(2)]
    torch.cuda.synchronize()
    stateless = pytest.raises(ValueError, match=r"all_reduce: it was captured .*every launch")
    ended = pytest.raises(ValueError, match=r"all_reduce: .* call wait\(\) within the capture")
    with torch.cuda.graph(graphs[0]):
        work = dist.all_reduce(x, async_op=True)
        for _ in range(2):
            work.wait()
        for query in (work.is_completed, work.is_success, lambda: work.wait(_LONG)):
            with stateless:
                query()
    with torch.cuda.graph(graphs[1]):
        with ended:
            work.wait()
        dist.all_reduce(x, async_op=True).wait()
    for wait in (work.wait, work.synchronize, work.get_future, lambda: work.wait(_LONG)):
        with ended:
            wait()
    for graph, expected in zip(graphs, (3.0, 6.0), strict=True):
        graph.replay()
        assert x.tolist() == [expected] * _COUNT
        graph.reset()


@on_ranks(2, fixture="device_world")
def test_durations_are_read_during_a_capture(rank: int, size: int) -> None:
    """In every mode, and the capture stays valid. A captured work has no duration."""
    x = _connected(rank + 1)
    pg: Any = dist.group.WORLD
    pg._enable_collectives_timing()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    stateless = pytest.raises(ValueError, match=r"all_reduce: it was captured .*every launch")
    for mode in ("global", "thread_local", "relaxed"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            captured = dist.all_reduce(x, async_op=True)
            captured.wait()
            assert work._get_duration() >= 0
            with stateless:
                captured._get_duration()
        x.fill_(rank + 1)
        graph.replay()
        assert x.tolist() == [3.0] * _COUNT
        graph.reset()


def _trained_on(own: torch.device, rank: int) -> Values:
    model = DistributedDataParallel(make_model().to(own), bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in batches(rank, steps=4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs.to(own)), targets.to(own)).backward()
        optimizer.step()
    return values(parameter.cpu() for parameter in model.parameters())


def _trained(rank: int, _size: int) -> tuple[Values, Values]:
    return _trained_on(torch.device("cuda"), rank), _trained_on(torch.device("cpu"), rank)


def test_ddp_trains_as_over_gloo(device_world: World) -> None:
    found = device_world(2, _trained, init={"backend": "cpu:gloo,cuda:pynccl"})
    (ours, theirs), (others, _) = found
    assert ours
    assert ours == others
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(expected, rel=1e-5, abs=1e-5)
