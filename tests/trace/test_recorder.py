"""Proves that a trace contains every operation of the process with its arguments and times,
including groups, plans, threads and asynchronous works.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import pynccl
from pynccl import _C, nccl
from pynccl.tools.trace import chrome
from pynccl.tools.trace.merge import merge
from pynccl.tools.trace.model import Operation, ProcessTrace
from pynccl.tools.trace.order import check
from tests.support import gpu
from tests.support.blocking import in_threads, wait_until
from tests.support.commands import run_python
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.traces import CLOCKS, traced_by

COUNT = 1000


def _every_operation(rank: Rank, comm: nccl.Communicator) -> None:
    last, nranks = rank.nranks - 1, rank.nranks
    one = rank.memory.put(np.ones(COUNT, np.float32))
    out = rank.memory.put(np.zeros(COUNT, np.float32))
    blocks = rank.memory.put(np.ones(COUNT * nranks, np.float64))
    results = rank.memory.put(np.zeros(COUNT * nranks, np.float64))
    block = rank.memory.put(np.zeros(COUNT, np.float64))
    comm.all_reduce(one, nccl.MAX, out=out)
    comm.broadcast(one, last)
    comm.reduce(one, last, out=out)
    comm.all_gather(block, out=results)
    comm.reduce_scatter(blocks, out=block)
    comm.all_to_all(blocks, out=results)
    comm.gather(block, last, out=results if rank.rank == last else None)
    comm.scatter(blocks if rank.rank == last else block, last, out=block)
    with nccl.group():
        comm.send(one, (rank.rank + 1) % nranks)
        comm.recv(out, (rank.rank - 1) % nranks)


@on_ranks(3, by="provider")
def test_every_operation_with_its_arguments(rank: Rank) -> None:
    comm = rank.comm
    trace = traced_by(lambda: _every_operation(rank, comm))
    n, last = rank.nranks, rank.nranks - 1
    at_last = rank.rank == last
    (communicator,) = trace.communicators.values()
    assert (communicator.rank, communicator.nranks) == (rank.rank, n)
    assert communicator.provider == rank.provider
    assert trace.timed
    assert trace.rank == rank.rank
    assert trace.pid == os.getpid()
    operations = trace.operations
    assert [o.kind for o in operations] == [
        "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather",
        "scatter", "send", "recv",
    ]  # fmt: skip
    assert [o.number for o in operations] == [1, 2, 3, 4, 5, 6, 7, 8, 1, 1]
    first = operations[0].sequence
    assert [o.sequence for o in operations] == list(range(first, first + 10))
    assert [o.op for o in operations] == ["max", None, "sum", None, "sum"] + [None] * 5
    assert [o.root for o in operations] == [None, last, last, None, None, None, last, last] + [
        None
    ] * 2
    assert [o.peer for o in operations[-2:]] == [(rank.rank + 1) % n, (rank.rank - 1) % n]
    assert [o.count for o in operations] == [COUNT] * 10
    small, large = 4 * COUNT, 8 * COUNT
    assert [o.sendbytes for o in operations] == [
        small, small * at_last, small, large, large * n, large * n, large, large * n * at_last,
        small, 0,
    ]  # fmt: skip
    assert [o.recvbytes for o in operations] == [
        small, small, small * at_last, large * n, large, large * n, large * n * at_last, large,
        0, small,
    ]  # fmt: skip
    assert operations[-1].group == operations[-2].group is not None
    assert not any(o.group for o in operations[:-2])
    assert not any(o.failed for o in operations)
    _check_times(trace)


def _check_times(trace: ProcessTrace) -> None:
    for o in trace.operations:
        assert trace.began <= o.called <= o.returned <= trace.ended, o
        assert o.called - CLOCKS <= o.began <= o.ended <= trace.ended + CLOCKS, o


@on_ranks(2, by="provider")
def test_the_times_of_streams(rank: Rank) -> None:
    """Work that a stream runs late is late in the trace, on that stream only."""
    comm = rank.comm
    stream, other = rank.stream(), rank.stream()
    a, b = (rank.memory.put(np.ones(COUNT, np.float32)) for _ in range(2))
    waits = threading.Event()
    opened = ended = 0

    def pause() -> None:
        nonlocal opened
        waits.wait(60)
        time.sleep(0.5)
        opened = time.monotonic_ns()

    def run() -> None:
        nonlocal ended
        stream.launch(pause)
        comm.all_reduce(a, stream=stream)
        waits.set()
        stream.synchronize()
        comm.all_reduce(b, stream=other)
        other.synchronize()
        ended = time.monotonic_ns()

    comm.all_reduce(a, stream=stream)
    comm.all_reduce(b, stream=other)
    other.synchronize()
    trace = traced_by(run)
    late, early = trace.operations
    assert late.stream == stream.handle
    assert early.stream == other.handle
    assert late.called < opened - CLOCKS <= late.began
    assert early.ended - CLOCKS <= ended
    _check_times(trace)
    wait, _ = [w for w in trace.waits if w.what == "stream"]
    assert wait.stream == stream.handle
    assert not wait.on_device
    assert wait.began < opened <= wait.ended
    assert wait.ended >= late.ended - CLOCKS


@on_ranks(2, by="provider")
def test_waits_and_ranges_of_streams(rank: Rank) -> None:
    """A stream that waits for another stream's event waits in the trace."""
    comm = rank.comm
    stream, other = rank.stream(), rank.stream()
    event, started = rank.event(), rank.event()
    x = rank.memory.put(np.ones(COUNT, np.float32))
    opened = done = 0

    def run() -> None:
        nonlocal opened, done
        gate = threading.Event()
        stream.launch(lambda: gate.wait(60))
        event.record(stream)
        started.record(other)  # a function would wait for that of the other stream, on GPUs
        other.wait(event)
        with nccl.range("rest", compute=True, stream=other):
            comm.all_reduce(x, stream=other)
        event.record(other)
        wait_until(started.query)
        time.sleep(0.5)  # until it waits
        opened = time.monotonic_ns()
        gate.set()
        event.synchronize()
        done = time.monotonic_ns()

    comm.all_reduce(x, stream=other)
    other.synchronize()
    trace = traced_by(run)
    (wait,) = [w for w in trace.waits if w.what == "stream_event"]
    assert (wait.stream, wait.on_device) == (other.handle, True)
    assert wait.began < opened - CLOCKS
    (operation,) = trace.operations
    (span,) = trace.ranges
    assert (span.name, span.compute, span.stream) == ("rest", True, other.handle)
    times = (opened, wait.ended, span.began, operation.began, operation.ended, span.ended, done)
    assert all(earlier - CLOCKS <= later for earlier, later in itertools.pairwise(times)), times


def _ranges_on_other_devices(rank: Rank) -> None:
    """The stream of a range need not be on the current device."""
    assert rank.device == 0
    rank.comm.all_reduce(rank.memory.put(np.ones(COUNT, np.float32)))
    streams = [nccl.Stream("cuda", device=device) for device in (0, 1)]
    opened = done = 0

    def run() -> None:
        nonlocal opened, done
        gate = threading.Event()
        for stream in streams:
            stream.launch(lambda: gate.wait(60))
            for form in (stream, stream.handle):
                with nccl.range("late", stream=form):
                    pass
        time.sleep(0.5)
        opened = time.monotonic_ns()
        gate.set()
        for stream in streams:
            stream.synchronize()
        done = time.monotonic_ns()

    trace = traced_by(run)
    assert [span.stream for span in trace.ranges] == [s.handle for s in streams for _ in range(2)]
    for span in trace.ranges:
        assert opened - CLOCKS <= span.began <= span.ended + CLOCKS <= done + 2 * CLOCKS


@pytest.mark.gpu
def test_ranges_of_streams_on_other_devices(launch: Launcher) -> None:
    gpu.require_devices(2)
    launch(1, _ranges_on_other_devices, provider="cuda")


@on_ranks(2, by="provider")
def test_groups_and_plans(rank: Rank) -> None:
    comm = rank.comm
    other = comm.split(0)
    x, y = (rank.memory.put(np.ones(COUNT, np.float32)) for _ in range(2))
    stream = rank.stream()
    with nccl.plan() as plan:
        comm.all_reduce(x, stream=stream)
        other.all_reduce(y)

    def run() -> None:
        plan()
        with nccl.group():
            plan()
        stream.synchronize()

    trace = traced_by(run)
    assert len(trace.communicators) == 2
    first, second = trace.operations[:2], trace.operations[2:]
    assert len({o.group for o in first}) == len({o.group for o in second}) == 1
    assert first[0].group != second[0].group
    assert {o.stream for o in first} == {stream.handle, second[1].stream}
    _check_times(trace)


@on_ranks(2, by="provider")
def test_one_sided_operations(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    nbytes = 4096
    memories = [comm.mem_alloc(nbytes) for _ in range(2)]
    windows = [comm.register_window(memory) for memory in memories]
    peer = (rank.rank + 1) % rank.nranks
    source = (rank.rank - 1) % rank.nranks
    event = rank.event()

    def run() -> None:
        comm.put_signal(
            memories[1].ptr + 64, peer, windows[0], 128, count=16, dtype="float32", stream=stream
        )
        comm.signal(peer, stream=stream)
        comm.wait_signal({source: 2}, stream=stream)
        event.record(stream)
        event.synchronize()

    trace = traced_by(run)
    put, signalled, waited = trace.operations
    assert put.kind == "put_signal"
    assert (put.window, put.offset, put.signal, put.context) == (1, 128, 0, 0)
    assert (put.peer, put.count, put.sendbuff) == (peer, 16, memories[1].ptr + 64)
    assert (put.recvbuff, put.recvbytes) == (0, 0)
    assert (signalled.kind, signalled.peer) == ("signal", peer)
    assert (signalled.signal, signalled.window) == (0, None)
    assert (waited.kind, waited.count, waited.sendbuff) == ("wait_signal", 1, 0)
    (wait,) = [w for w in trace.waits if w.what == "event"]
    assert wait.event_stream == stream.handle
    assert waited.called < wait.event_recorded <= wait.called
    (again,) = chrome.parse(json.dumps(chrome.document(trace)))
    assert again == trace
    for window in windows:
        window.close()


def _in_one_process(comms: list[nccl.Communicator]) -> None:
    """Collectives and puts into windows, issued by one thread for all ranks."""
    n = len(comms)
    memories = [comm.mem_alloc(4096) for comm in comms]
    with nccl.group():
        windows = [comm.register_window(one) for comm, one in zip(comms, memories, strict=True)]
    arrays = [np.from_dlpack(one).view(np.float32) for one in memories]
    for _ in range(2):
        with nccl.group():
            for comm in comms:
                comm.all_reduce(np.ones(COUNT, np.float32))
        with nccl.group():
            for rank, comm in enumerate(comms):
                comm.send(np.ones(4), (rank + 1) % n)
                comm.recv(np.ones(4), (rank - 1) % n)
        with nccl.group():
            for rank, comm in enumerate(comms):
                comm.put_signal(arrays[rank][:100], (rank + 1) % n, windows[rank], 2048)
                comm.wait_signal((rank - 1) % n)
    for window in windows:
        window.close()


def _check_ranks(trace: ProcessTrace, n: int) -> None:
    id = trace.operations[-1].communicator
    own = {key: one for key, one in trace.communicators.items() if key[0] == id}
    assert list(own) == [(id, rank) for rank in range(n)]
    assert [(one.rank, one.nranks) for one in own.values()] == [(rank, n) for rank in range(n)]
    for operation in trace.operations:
        communicator = trace.communicator_of(operation)
        assert communicator.rank == operation.rank
    kinds = ["put_signal", "wait_signal"]
    for rank in range(n):
        found = [one for one in trace.operations if (one.communicator, one.rank) == (id, rank)]
        assert [one.kind for one in found if one.kind in kinds] == kinds * 2


def test_all_ranks_of_a_process(tmp_path: Path) -> None:
    """The ranks of init_all(); the process has the rank in its largest communicator."""
    (alone,) = nccl.Communicator.init_all(1, provider="host")
    comms = nccl.Communicator.init_all(3, provider="host")

    def run() -> None:
        alone.all_reduce(np.ones(1))
        _in_one_process(comms)

    _C.start_recording(str(tmp_path / "file"), 1 << 26)
    trace = traced_by(run)
    (recorded,) = chrome.load(_C.stop_recording())
    (file,) = chrome.parse(json.dumps(chrome.document(trace)))
    assert file == trace
    for one in (trace, recorded, file):
        assert len(one.communicators) == 4
        _check_ranks(one, 3)
        assert one.rank == 0
        found = [[match.kind, *(m.rank for m in match.members)] for match in merge([one]).matches]
        messages = [["send", 0, 1], ["send", 1, 2], ["send", 2, 0]]
        # Registering a window gathers.
        collectives = [["all_gather", 0, 1, 2], ["all_reduce", 0, 1, 2], ["all_reduce", 0, 1, 2]]
        assert sorted(found) == sorted([*collectives, *messages * 2])
        if one.timed:
            assert check(one) == []
    for comm in [alone, *comms]:
        comm.close()


@on_ranks(3)
def test_the_rank_of_a_process_is_that_in_its_largest_communicator(rank: Rank) -> None:
    half = rank.comm.split(rank.rank // 2, -rank.rank)
    x = np.ones(1)

    def run() -> None:
        half.all_reduce(x)
        rank.comm.all_reduce(x)

    assert traced_by(run).rank == rank.rank
    half.close()


def _repeat(function: Callable[[], object]) -> None:
    for _ in range(10):
        function()


@on_ranks(2, fresh=True)
def test_failed_operations(rank: Rank) -> None:
    comm = rank.communicator()
    x = rank.memory.put(np.zeros(COUNT, np.float32))
    comm.all_reduce(x)

    def run() -> None:
        comm.all_reduce(x)
        if rank.rank == 0:
            comm.abort()
        else:
            with pytest.raises((nccl.NcclError, ValueError)):
                _repeat(lambda: comm.all_reduce(x))

    trace = traced_by(run)
    failed = [o for o in trace.operations if o.failed]
    if rank.rank != 0 and failed:  # or the communicator is already aborted before the call
        assert failed == [trace.operations[-1]]
    assert not trace.operations[0].failed


def _single() -> nccl.Communicator:
    return nccl.Communicator(1, nccl.get_unique_id("host"), 0)


def test_threads_have_their_own_rows() -> None:
    """More operations than the log of a thread can store, on threads that end meanwhile."""
    counts = [3000, 5000, 10]

    def work(count: int) -> None:
        with _single() as comm:
            x = np.ones(1, np.float32)
            for _ in range(count):
                comm.all_reduce(x)

    trace = traced_by(lambda: in_threads(*(partial(work, count) for count in counts)))
    by_thread: dict[int, list[Operation]] = {}
    for operation in trace.operations:
        by_thread.setdefault(operation.thread, []).append(operation)
    assert sorted(len(operations) for operations in by_thread.values()) == sorted(counts)
    for operations in by_thread.values():
        assert [o.sequence for o in operations] == list(range(1, len(operations) + 1))


def test_operations_beyond_the_limit_are_counted() -> None:
    with _single() as comm:
        x = np.ones(1, np.float32)
        trace = traced_by(lambda: [comm.all_reduce(x) for _ in range(500)], limit=100)
    assert len(trace.operations) == 100
    assert trace.dropped == 400
    assert [o.sequence for o in trace.operations] == list(range(1, 101))


def test_one_trace_at_a_time() -> None:
    with nccl.trace() as outer:
        inner = nccl.trace()
        with pytest.raises(ValueError, match="trace: one is already running"):
            inner.__enter__()
    assert outer.process is not None
    with pytest.raises(ValueError, match="trace: a Trace can be used only once"), outer:
        pass
    with _single() as comm, nccl.trace() as after:
        comm.all_reduce(np.ones(1, np.float32))
    assert len(after.process.operations) == 1


_TWO_STOPS = """
import threading
import numpy as np
from pynccl import _C, nccl
ends = threading.Event()
comm, stream = nccl.Communicator.init_all(1, provider="host")[0], nccl.Stream("host")
outcomes = []
def stop():
    try:
        outcomes.append(type(_C.stop_trace(30.0)).__name__)
    except ValueError as error:
        outcomes.append(str(error))
_C.start_trace(100, False)
stream.launch(ends.wait)
comm.all_reduce(np.ones(1), stream=stream)
first = threading.Thread(target=stop)
first.start()
while True:  # until it has switched the trace off, and waits for the stream
    number = _C.begin_range("range", False, None, 0)
    if number == 0:
        break
threading.Timer(1, ends.set).start()
stop()
first.join()
print(*outcomes, sep=", ")
comm.close()
"""


def test_a_trace_is_stopped_once() -> None:
    """Another thread may try it while the first one waits for the traced work."""
    ran = run_python("-c", _TWO_STOPS)
    assert (ran.returncode, ran.stdout.strip()) == (0, "trace: none is running, bytes"), ran.stderr


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None])
def test_a_wrong_limit(limit: object) -> None:
    with pytest.raises(ValueError, match=f"limit: expected .*, got {limit!r}"):
        nccl.trace(limit=limit)  # type: ignore[arg-type]


def test_wrong_ranges() -> None:
    with pytest.raises(TypeError, match="name: expected a string, got 3"):
        nccl.range(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stream: expected a stream"):
        nccl.range("a", stream="b")


def test_ranges_nest_and_an_open_one_has_no_end() -> None:
    opened = nccl.range("open")

    def run() -> None:
        with nccl.range("outer"), nccl.range("inner", compute=True):
            time.sleep(0.002)
        opened.__enter__()

    trace = traced_by(run)
    opened.__exit__(None, None, None)
    outer, inner, last = trace.ranges
    assert (outer.name, inner.name, last.name) == ("outer", "inner", "open")
    assert (outer.compute, inner.compute) == (False, True)
    assert outer.began <= inner.began < inner.ended - 1_900_000 < outer.ended
    assert last.ended is None


def test_operations_are_ranges_of_torch() -> None:
    torch = pytest.importorskip("torch")
    with _single() as comm:
        x = torch.ones(4)
        with torch.profiler.profile() as profile, nccl.trace(annotate=True), nccl.range("step"):
            comm.all_reduce(x)
            with nccl.group():
                comm.all_reduce(x)
        names = [event.name for event in profile.events()]
    assert {"step", "pynccl.all_reduce", "pynccl.group"} <= set(names)


@on_ranks(2, env={"PYTEST_WITH_TORCH": "1"})
def test_the_mirror_and_its_works(rank: Rank) -> None:
    torch = pytest.importorskip("torch")
    pynccl.init_process_group(
        "host", init_method=rank.init_method, rank=rank.rank, world_size=rank.nranks
    )
    try:
        x = torch.ones(COUNT)

        def run() -> None:
            pynccl.all_reduce(x)
            work = pynccl.all_reduce(x, async_op=True)
            if rank.rank == 0:
                time.sleep(0.02)
            work.wait()

        trace = traced_by(run)
    finally:
        pynccl.destroy_process_group()
    assert trace.rank == rank.rank
    assert [o.kind for o in trace.operations] == ["all_reduce"] * 2
    assert trace.operations[0].stream != trace.operations[1].stream
    (wait,) = [w for w in trace.waits if w.what == "work"]
    assert wait.sequence == trace.operations[1].sequence
    assert wait.communicator == trace.operations[1].communicator


def _reduce_alone() -> None:
    with _single() as comm:
        comm.all_reduce(np.ones(1, np.float32))


def test_a_child_of_a_fork_is_not_traced() -> None:
    """But by a trace of its own."""
    with _single() as comm, nccl.trace() as trace:
        comm.all_reduce(np.ones(1, np.float32))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                inner = traced_by(_reduce_alone)
                status = 0 if [one.kind for one in inner.operations] == ["all_reduce"] else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        comm.all_reduce(np.ones(1, np.float32))
    assert len(trace.process.operations) == 2
