"""Difficulties specific to CUDA and NCCL, on the double: contexts, streams of devices, destruction
order, memory in use, and calls that may not return.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pynccl import _C, nccl, raw
from pynccl.flight.dump import load
from tests.doubles import library
from tests.mirror.conftest import mirror_runner
from tests.support import warm
from tests.support.blocking import in_threads, wait_until
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank, wait_for
from tests.support.ranks import on_ranks


def _one_rank(device: int = 0) -> nccl.Communicator:
    return nccl.Communicator(1, nccl.get_unique_id("cuda"), 0, provider="cuda", device=device)


def test_operations_of_init_all_are_watched_on_their_devices() -> None:
    import torch

    pair = nccl.Communicator.init_all([0, 1], provider="cuda")
    streams = [nccl.Stream("cuda", device=device) for device in range(2)]
    tensors = [torch.ones(4, device=f"cuda:{device}") for device in range(2)]
    with nccl.group():
        for comm, tensor, stream in zip(pair, tensors, streams, strict=True):
            comm.all_reduce(tensor, stream=stream)
    for stream in streams:
        stream.synchronize()
    wait_until(lambda: all(comm.flight_record()[0].state == "done" for comm in pair))
    for comm in pair:
        comm.abort()


class _Exported:
    """Exports memory that only the capsule references."""

    def __init__(self, comm: nccl.Communicator) -> None:
        self._comm = comm

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: object = None) -> object:
        return self._comm.mem_alloc(4, "float32").__dlpack__()


def test_an_event_of_kept_memory_fails() -> None:
    """The events of other operations, which are done, are still there at the next call."""
    comm, streams = _one_rank(), [nccl.Stream("cuda", device=0) for _ in range(3)]
    library.busy(0.3, streams[0].handle)
    comm.all_reduce(_Exported(comm), stream=streams[0])
    with library.record() as record:
        comm.all_reduce(_Exported(comm), stream=streams[1])
    streams[0].synchronize()
    library.driver()("cuEventDestroy_v2", record.named("cuEventRecord")[-1].arguments[0])
    for _ in range(2):
        comm.all_reduce(_Exported(comm), stream=streams[2])
    comm.abort()


@on_ranks(2, provider="cuda")
def test_a_barrier_waits_for_the_gpu(rank: Rank) -> None:
    """A barrier without earlier communication on the GPU."""
    import torch

    import pynccl

    torch.cuda.set_device(rank.device)
    pynccl.init_process_group(
        "cpu:host,cuda:nccl",
        init_method=rank.init_method,
        world_size=rank.nranks,
        rank=rank.rank,
    )
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        library.busy(0.5, stream.cuda_stream, torch.cuda.current_device())
        pynccl.barrier()
    assert stream.query()
    pynccl.destroy_process_group()


@on_ranks(2, provider="cuda")
def test_a_default_stream_is_that_of_the_device_of_the_event(rank: Rank) -> None:
    import torch

    torch.cuda.set_device(rank.device)
    event = nccl.Event("cuda", device=1 - rank.device)
    event.record(0)
    event.synchronize()
    assert torch.cuda.current_device() == rank.device


@pytest.mark.violations
@on_ranks(1, provider="cuda", fresh=True)
def test_memory_of_nccl_is_freed_in_order(rank: Rank) -> None:
    import torch

    from pynccl import memory

    torch.cuda.set_device(rank.device)
    x = memory.torch_empty(rank.comm, (4,), torch.float32)
    x.fill_(1)
    library.busy(0.3, 0, torch.cuda.current_device())
    y = x + 1
    del x
    assert y.tolist() == [2.0] * 4
    assert not library.violations()


def _closes_after_an_error(rank: Rank, seen: str) -> list[float]:
    import torch

    torch.cuda.set_device(rank.device)
    comm = rank.communicator()
    x = torch.ones(4, device="cuda")
    comm.all_reduce(x)
    torch.cuda.synchronize()
    if rank.rank == 1:
        wait_for(seen)
        os.kill(os.getpid(), signal.SIGKILL)
    Path(seen).touch()
    stream = rank.stream()
    comm.all_reduce(x, stream=stream)
    while comm.async_error() is None:
        time.sleep(0.01)
    with pytest.raises(nccl.NcclError):
        comm.close()
    other = _one_rank()
    y = torch.ones(4, device="cuda")
    z = torch.zeros(4, device="cuda")
    other.all_reduce(y, out=z)
    values: list[float] = z.tolist()
    other.abort()
    return values


def test_collectives_work_after_a_failed_close(launch: Launcher, tmp_path: Path) -> None:
    env = {"NCCL_DOUBLE_DEAD_PEERS_SPIN": "0", **library.of_version("2.28")}
    seen = str(tmp_path / "seen")
    first, _ = launch.outcomes(2, _closes_after_an_error, seen, provider="cuda", env=env)
    assert first.ok, first.trace
    assert first.value == [1.0] * 4


def _waits_for_a_destroyed_stream(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    x = rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        rank.wait_event("connected", 0)
        os.kill(os.getpid(), signal.SIGKILL)
    rank.set_event("connected")
    comm.all_reduce(x, stream=stream)
    lib = raw.load("cuda")
    wait_until(lambda: lib.ncclCommGetAsyncError(comm.handle) == raw.ncclRemoteError)
    dump = Path(_C.flight_dump_path() or "")
    assert not dump.exists()
    gone = rank.stream()
    library.driver()("cuStreamDestroy_v2", gone.handle)
    with pytest.raises(nccl.DriverError):
        gone.synchronize()
    (dumped,) = load(str(dump)).communicators
    assert "ncclCommGetAsyncError failed on rank 0" in (dumped.failure or "")
    comm.abort()


def test_a_failure_of_the_driver_writes_the_flight_record(launch: Launcher, tmp_path: Path) -> None:
    """A communicator has failed, which may be the cause, and no call has noticed it yet."""
    env = {"NCCL_DOUBLE_DEAD_PEERS_SPIN": "0", "PYNCCL_FLIGHT_FILE": f"{tmp_path}/flight_"}
    first, _ = launch.outcomes(2, _waits_for_a_destroyed_stream, provider="cuda", env=env)
    assert first.ok, first.trace


def _shrinks_after_a_death(rank: Rank, folder: Path, front: str, notices: bool) -> list[float]:
    import torch

    torch.cuda.set_device(rank.device)
    if front == "mirror":
        import pynccl as dist
        from pynccl.mirror.lifecycle.shrink import SHRINK_ABORT
    else:
        import torch.distributed as dist  # type: ignore[no-redef]
        from torch.distributed.distributed_c10d import SHRINK_ABORT

        import pynccl.c10d  # noqa: F401
    backend = "nccl" if front == "mirror" else "pynccl"
    store = torch.distributed.FileStore(str(folder / "store"), -1)
    world: dict[str, Any] = {"rank": rank.rank, "world_size": rank.nranks}
    world["timeout"] = timedelta(seconds=60)
    device = torch.device("cuda", rank.device)  # which torch's shrink_group needs
    dist.init_process_group(backend, store=store, device_id=device, **world)
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    (folder / str(rank.rank)).touch()
    if rank.rank == 2:
        for survivor in ("0", "1"):
            wait_for(str(folder / survivor))
        os.kill(os.getpid(), signal.SIGKILL)
    _work = dist.all_reduce(x, async_op=True)
    # A rank that shrinks ends the operations of the others, and their later calls fail.
    (folder / f"{rank.rank} has issued").touch()
    wait_for(str(folder / f"{1 - rank.rank} has issued"))
    (comm,) = nccl.flight_record()
    if notices:
        wait_until(lambda: comm.async_error() is not None)
    began = time.monotonic()
    dist.shrink_group([2], shrink_flags=SHRINK_ABORT)
    assert time.monotonic() - began < 45  # it does not wait for the operation
    y = torch.ones(4, device="cuda")
    dist.all_reduce(y)
    values: list[float] = y.tolist()
    dist.destroy_process_group()
    return values


@pytest.mark.parametrize("notices", [True, False])
@pytest.mark.parametrize("front", ["mirror", "backend"])
def test_groups_shrink_after_a_death(
    launch: Launcher, tmp_path: Path, front: str, notices: bool
) -> None:
    """Whether or not NCCL's network has noticed it."""
    env = {"NCCL_DOUBLE_DEAD_PEERS_SPIN": str(int(not notices)), "PYNCCL_ON_TIMEOUT": "raise"}
    *survivors, _ = launch.outcomes(
        3, _shrinks_after_a_death, tmp_path, front, notices, provider="cuda", env=env
    )
    for outcome in survivors:
        assert outcome.ok, outcome.trace
        assert outcome.value == [2.0] * 4


@pytest.mark.violations
@on_ranks(2, provider="cuda", fresh=True)
def test_abort_waits_for_calls(rank: Rank) -> None:
    comm = rank.communicator()
    if rank.rank == 0:

        def split() -> None:
            with contextlib.suppress(nccl.NcclError):
                comm.split(0)  # waits for the other rank, which never calls

        thread = threading.Thread(target=split)
        thread.start()
        time.sleep(0.3)
        comm.abort()
        thread.join(10)
    else:
        time.sleep(0.6)
        comm.abort()
    assert not library.violations()


_GRAPH_THEN_CLOSE = """
import torch
from pynccl import nccl
comm = nccl.Communicator(1, nccl.get_unique_id("cuda"), 0, provider="cuda", device=0)
stream, x = nccl.Stream("cuda", device=0), torch.ones(4, device="cuda")
comm.all_reduce(x, stream=stream)
stream.synchronize()
with nccl.capture(stream) as graph:
    comm.all_reduce(x)
from tests.doubles import library
library.busy(0.3, stream.handle)
graph.launch()
graph.close()
comm.close()
print("closed")
"""


def _runs(program: str) -> str:
    """Run a program to its end, and return its output."""
    done = run_python("-c", program, popen=warm.WholePopen)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_close_waits_for_a_graph_in_flight() -> None:
    assert _runs(_GRAPH_THEN_CLOSE) == "closed"


_GRAPH_AT_EXIT = """
import torch
from pynccl import nccl
comm = nccl.Communicator(1, nccl.get_unique_id("cuda"), 0, provider="cuda", device=0)
x = torch.ones(4, device="cuda")
comm.all_reduce(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    comm.all_reduce(x)
comm.abort()
print("ended")
"""


def test_abort_does_not_wait_for_graphs_of_others() -> None:
    assert _runs(_GRAPH_AT_EXIT) == "ended"


def test_streams_in_a_thread_without_a_context() -> None:
    stream, event = nccl.Stream("cuda", device=0), nccl.Event("cuda", device=0)

    def use() -> None:
        for call in (
            lambda: event.record(stream),
            lambda: stream.wait(event),
            event.query,
            stream.query,
            event.synchronize,
            stream.synchronize,
        ):
            call()

    in_threads(use)


def test_the_current_stream_of_an_arrays_device() -> None:
    import cupy

    comm = _one_rank(device=1)
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.ones(4, "float32")
            stream.synchronize()
            with cupy.cuda.Device(0), library.record() as record:
                comm.all_reduce(x)
    comm.close()
    (call,) = record.named("ncclAllReduce")
    assert call.stream == stream.ptr


def test_a_range_on_a_stream_of_another_device() -> None:
    comm, stream = _one_rank(), nccl.Stream("cuda", device=1)

    def trace() -> None:
        nccl.Stream("cuda", device=0).close()  # which leaves the device's context current
        before = library.driver().new("cuCtxGetCurrent")
        with nccl.trace() as traced, nccl.range("x", stream=stream):
            library.busy(0.02, stream.handle, 1)
        assert library.driver().new("cuCtxGetCurrent") == before
        (span,) = traced.process.ranges
        assert span.ended is not None
        assert span.ended - span.began > 0.01e9

    in_threads(trace)
    comm.close()


@pytest.mark.violations
@on_ranks(1, provider="cuda", fresh=True)
def test_a_segment_is_freed_in_order(rank: Rank) -> None:
    """A framework's allocator frees a pool segment during an operation."""
    import torch

    from pynccl import _C

    torch.cuda.set_device(rank.device)
    arena = _C.Arena.of(rank.comm.library)
    address = arena.allocate(64, torch.cuda.current_device())
    stream = rank.stream()
    library.busy(0.3, stream.handle)
    rank.comm.all_reduce(address, count=16, dtype="float32", stream=stream)
    arena.deallocate(address)
    assert not library.violations()


@contextlib.contextmanager
def _captured_by_others(flags: int = 1) -> Iterator[None]:
    """A stream captured by another library, in the most restrictive mode."""
    driver = library.driver()
    stream = driver.new("cuStreamCreate", flags)
    driver("cuStreamBeginCapture_v2", stream, 0)
    yield
    driver("cuGraphDestroy", driver.end_capture(stream))  # raises if the capture failed
    driver("cuStreamDestroy_v2", stream)


@contextlib.contextmanager
def _captured_by_torch(comm: nccl.Communicator) -> Iterator[None]:
    import torch

    x, graph = torch.ones(4, device="cuda:0"), torch.cuda.CUDAGraph()
    comm.all_reduce(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        comm.all_reduce(x)
        yield
    graph.reset()


@contextlib.contextmanager
def _captured_by_pynccl(_: nccl.Communicator) -> Iterator[None]:
    with nccl.capture(nccl.Stream("cuda", device=0)) as graph:
        yield
    graph.close()


def _is_freed(record: library.Record, memory: int) -> bool:
    """Whether an address was freed. Memory of earlier tests may also be freed meanwhile."""
    record.read()
    return any(memory in call.arguments for call in record.named("ncclMemFree"))


def _wait_for_free(record: library.Record, memory: int) -> None:
    until = time.monotonic() + 20
    while not _is_freed(record, memory):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_events_are_used_again(tmp_path: Path) -> None:
    """Each asynchronous operation uses two."""
    import torch

    import pynccl as dist

    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = torch.ones(4, device="cuda")
        with library.record() as record:
            for _ in range(30):
                dist.all_reduce(x, async_op=True).wait()
                torch.cuda.synchronize()
        assert len(record.named("cuEventRecord")) >= 60
        assert len(record.named("cuEventCreate")) < 10
    finally:
        dist.destroy_process_group()


def test_asking_for_unfinished_operations_adds_no_events() -> None:
    """One event after the last operation is enough, however often the flight record is read."""
    comm, stream = _one_rank(), nccl.Stream("cuda", device=0)
    x = comm.mem_alloc(4, "float32")
    library.busy(0.5, stream.handle)
    comm.all_reduce(x, stream=stream)
    with library.record() as record:
        for _ in range(50):
            comm.flight_record()
    stream.synchronize()
    assert len(record.named("cuEventRecord")) <= 1
    comm.close()


def test_a_trace_compares_the_clocks_of_the_devices_that_it_uses() -> None:
    """Not those of devices that only an earlier trace used."""
    streams = [nccl.Stream("cuda", device=device) for device in range(2)]

    def streams_of_events(*used: nccl.Stream) -> set[int]:
        """The streams of the events that a trace of a range on each stream records."""
        with library.record() as record, nccl.trace():
            for stream in used:
                with nccl.range("used", stream=stream):
                    pass
            time.sleep(1.2)  # after which clocks are compared again
        return {call.stream for call in record.named("cuEventRecord")}

    both = streams_of_events(*streams)
    assert len(both) == 4  # that of each range and that of its clock
    first = streams_of_events(streams[0])
    assert len(first) == 2
    assert first < both


def test_memory_is_freed_before_a_capture_of_others() -> None:
    """For example by torch.cuda.graph(), which collects garbage first.

    Freeing waits for the device only for a moment, which a busy machine may exceed.
    """
    comm, busy = _one_rank(), nccl.Stream("cuda", device=0)
    for _ in range(20):
        freed = comm.mem_alloc(4, "float32")
        memory = freed.ptr
        library.busy(0.02, busy.handle)
        with library.record() as record:
            del freed
            if not _is_freed(record, memory):
                _wait_for_free(record, memory)
                continue
            with _captured_by_others():
                pass
        break
    else:
        raise AssertionError("no memory was freed at once")
    comm.close()


@pytest.mark.parametrize(
    "captured",
    [
        _captured_by_pynccl,
        _captured_by_torch,  # whose captures may collect garbage
        lambda _: _captured_by_others(flags=0),  # streams of CuPy are blocking
    ],
    ids=["pynccl", "torch", "blocking"],
)
def test_memory_is_not_freed_in_a_capture(
    captured: Callable[[nccl.Communicator], contextlib.AbstractContextManager[None]],
) -> None:
    """A wait for the device, which comes first, would invalidate the capture."""
    comm = _one_rank()
    closed, freed = (comm.mem_alloc(4, "float32") for _ in range(2))
    memory = (closed.ptr, freed.ptr)
    with library.record() as record:
        with captured(comm):
            closed.close()
            del freed
            time.sleep(0.1)
            is_freed = any(_is_freed(record, one) for one in memory)
        assert not is_freed  # a failure inside would leave the capture to later tests
        for one in memory:
            _wait_for_free(record, one)
    comm.close()


@on_ranks(1, fresh=True, provider="cuda")
def test_a_trace_of_a_device_that_is_busy_at_first(rank: Rank) -> None:
    """It is busy for longer than the trace waits for its clock, so the times are read later."""
    comm, stream = rank.comm, rank.stream()
    x = comm.mem_alloc(4, "float32")
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    with library.slow(3, "STREAM"), nccl.trace() as trace:
        began = time.monotonic_ns()
        comm.all_reduce(x, stream=stream)
        stream.synchronize()
        ended = time.monotonic_ns()
    (operation,) = trace.process.operations
    assert operation.began is not None
    assert operation.ended is not None
    exact = 1_000_000  # ns, of the clock's only event
    assert began - exact < operation.began <= operation.ended < ended + exact


@on_ranks(1, provider="cuda", fresh=True)
def test_a_trace_compares_clocks_once_per_second(rank: Rank) -> None:
    """The operation is over, so nearly all events are those of comparisons.

    A trace also compares the clocks of devices that earlier traces of the process have used.
    """
    events = 5  # per comparison
    buffer, stream = rank.memory.put(np.ones(4, np.float32)), rank.stream()
    with nccl.trace():
        rank.comm.all_reduce(buffer, stream=stream)
        stream.synchronize()
        began = time.monotonic()
        with library.record() as record:

            def compared() -> int:
                record.read()
                return len(record.named("cuEventRecord"))

            wait_until(lambda: compared() >= 4 * events)
            found = compared()
            took = time.monotonic() - began
    # The default stream would wait for the program's other streams.
    assert all(call.stream != 0 for call in record.named("cuEventRecord"))
    # One second apart; a comparison may have begun before, and the monitor may record an event.
    assert found <= events * (took + 1.5), (found, took)


def test_waits_do_not_end_captures() -> None:
    comm, stream = _one_rank(), nccl.Stream("cuda", device=0)
    event = nccl.Event("cuda", device=0)
    event.record(stream)

    def wait() -> None:
        stream.synchronize()
        event.synchronize()

    with _captured_by_others():
        wait()
        in_threads(wait)  # waits in the driver
    comm.close()


def test_closing_graphs_does_not_end_captures() -> None:
    comm, stream = _one_rank(), nccl.Stream("cuda", device=0)
    data = comm.mem_alloc(4, "float32")
    graphs = []
    for _ in range(2):
        with nccl.capture(stream) as graph:
            comm.all_reduce(data, stream=stream)
        graphs.append(graph)
    with _captured_by_others(), library.record() as record:
        graphs[0].close()
        in_threads(graphs[1].close)
    assert [call.result for call in record.named("cuGraphExecDestroy")] == [0, 0]
    comm.close()


@on_ranks(1, provider="cuda", ids=2)
def test_a_graph_of_a_foreign_stream_is_launched_on_its_device(rank: Rank) -> None:
    import torch

    with torch.cuda.device(1):
        comm = nccl.Communicator(1, rank.unique_ids[1], 0, provider="cuda", device=1)
        side, x = torch.cuda.Stream(), torch.ones(4, device="cuda:1")
        torch.cuda.synchronize()
        with nccl.capture(side) as graph:
            comm.all_reduce(x, stream=side)
    torch.cuda.set_device(0)
    for _ in range(2):
        graph.launch()
    side.synchronize()
    graph.close()
    comm.close()


@on_ranks(2, provider="cuda", fresh=True)
def test_a_failed_initialization_leaves_nothing(rank: Rank) -> None:
    """The ranks disagree on the number of ranks."""
    with library.record() as record, pytest.raises(nccl.NcclError):
        nccl.Communicator(2 + rank.rank, rank.unique_ids[0], rank.rank, provider="cuda")
    assert len(record.named("ncclCommAbort")) == 1


_RUNTIME = """
#include <stddef.h>
int cudaGetDevice(int* device) { return *device = 1, 0; }
"""


def test_the_device_of_the_runtime_is_kept(tmp_path: Path) -> None:
    """Before CUDA 12, cudaSetDevice(1) selects a device without a context."""
    source, file = tmp_path / "runtime.c", tmp_path / "libcudart.so.11.0"
    source.write_text(_RUNTIME)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", file, source], check=True, timeout=60)
    program = f"""
import ctypes
ctypes.CDLL({str(file)!r})
from pynccl import nccl
print(nccl.Stream("cuda").device)
"""
    assert _runs(program) == "1"


# The child's handle is written long after the child is ready, as on a busy machine.
@on_ranks(2, provider="cuda", fresh=True, env={"NCCL_DOUBLE_HANDLE_SECONDS": "0.2"})
def test_a_child_is_ready_after_its_parent(rank: Rank) -> None:
    parent = rank.communicator(config=nccl.Config(blocking=0))
    parent.wait_ready(20)
    child = parent.split(0)
    assert child is not None
    until = time.monotonic() + 20
    while not child.ready:
        assert time.monotonic() < until
    assert parent.ready
    child.abort()
    parent.abort()


def _connect_while_memory_is_in_use(dist: ModuleType, rank: int, _size: int) -> None:
    """The caching allocator reuses memory immediately for work on the same stream."""
    import torch

    tensors = [torch.ones(64) for _ in range(3)]
    torch.cuda.synchronize()
    library.busy(0.3, torch.cuda.current_stream().cuda_stream)
    tensors.pop().add_(1)
    works = [dist.isend(tensors[0], 1 - rank), dist.irecv(tensors[1], 1 - rank)]
    for work in works:
        work.wait()
    torch.cuda.synchronize()


def test_a_connection_uses_memory_of_its_own(launch: Launcher, tmp_path: Path) -> None:
    """The plugin reports memory that is used out of order."""
    mirror_runner(launch, tmp_path, "cuda")(2, _connect_while_memory_is_in_use)


@on_ranks(2, provider="cuda")
def test_close_does_not_wait_for_ranks_excluded_with_abort(rank: Rank) -> None:
    """As ncclCommDestroy does since NCCL 2.31.2."""
    comm = rank.comm
    if rank.rank == 1:
        rank.wait_event("closed", 0)  # excluded, and has closed nothing before
        return
    with library.record() as record:
        comm.shrink([1], abort=True).close()
        parent = comm.handle
        comm.close()
    rank.set_event("closed")
    ends = record.named("ncclCommDestroy", "ncclCommAbort")
    assert [call.function for call in ends if parent in call.arguments] == ["ncclCommAbort"]


@on_ranks(2, provider="cuda", timeout=90)
def test_nothing_waits_for_a_driver_that_does_not_respond(rank: Rank) -> None:
    """It blocks the monitor, while operations continue and time out."""
    long = 30.0  # seconds
    comm, other = rank.comm, rank.comm.split(0)
    assert other is not None
    buffer = rank.memory.put(np.ones(4, np.float32))
    stream, foreign = rank.stream(), library.driver().new("cuStreamCreate", 1)
    for one in (comm, other):
        one.all_reduce(buffer, stream=stream)
    stream.synchronize()
    if rank.rank == 1:
        rank.wait_event("expired", 0)
        comm.abort()
        other.abort()
        return
    expired: queue.Queue[Exception] = queue.Queue()
    comm.on_timeout = lambda _comm, error: expired.put(error)
    comm.timeout = 0.5
    with library.blocked_queries() as blocked:
        comm.all_reduce(buffer, stream=stream)
        wait_until(blocked, long)
        for each, on in ((comm, foreign), (other, foreign), (other, stream)):
            in_threads(lambda each=each, on=on: each.all_reduce(buffer, stream=on))
        error = expired.get(timeout=long)
        in_threads(comm.flight_record)
    rank.set_event("expired")
    assert isinstance(error, nccl.NcclTimeoutError)
    assert "all_reduce #" in str(error)
    assert "the GPU driver has not answered for" in str(error)
    comm.abort()
    other.abort()


@on_ranks(1, provider="cuda")
def test_the_flight_record_waits_for_a_driver_without_the_gil(rank: Rank) -> None:
    buffer, stream = rank.memory.put(np.ones(4, np.float32)), rank.stream()
    with library.blocked_queries() as blocked:
        rank.comm.all_reduce(buffer, stream=stream)
        reading = threading.Thread(target=rank.comm.flight_record)
        reading.start()
        wait_until(blocked)
    reading.join()
    stream.synchronize()
