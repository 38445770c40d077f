"""Proves the semantics of asynchronous operations on both providers: Work references its tensors
until a wait, memory does not grow beyond the operations in flight, and captures join them. Also the
forms of streams, their priorities and the default streams. tests/mirror/test_mirror_work.py tests
asynchronous operations in groups.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections import deque
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support import gpu
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


def comm_stream_of(rank: Rank, comm: nccl.Communicator) -> Any:  # noqa: ANN401
    """A communicator with its own stream, as async_op=True uses it."""
    import torch

    from pynccl.mirror.group.comm_stream import CommStream

    device = torch.device("cpu" if rank.device is None else f"cuda:{rank.device}")
    return CommStream(comm, device, timedelta(seconds=60))


def _tensor(rank: Rank, count: int, value: float = 1.0) -> Any:  # noqa: ANN401
    import torch

    device = "cpu" if rank.device is None else f"cuda:{rank.device}"
    return torch.full((count,), value, device=device)


def start(comm_stream: Any, tensor: Any) -> Any:  # noqa: ANN401
    from pynccl.mirror.group.comm_stream import Call

    def enqueue(comm: nccl.Communicator, stream: int | None) -> None:
        comm.all_reduce(tensor, stream=stream)

    return comm_stream.issue(Call("all_reduce", tensor, enqueue, [tensor], {}, async_op=True))


@on_ranks(2, by="provider")
def test_work_keeps_its_tensors(rank: Rank) -> None:
    """A tensor without other references lives until the wait for its work."""
    comm_stream = comm_stream_of(rank, rank.comm)
    tensor = _tensor(rank, 1000)
    alive = weakref.ref(tensor)
    work = start(comm_stream, tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    work.wait()
    assert alive() is not None  # the work's result
    value = work.result()[0]
    assert (value == rank.nranks).all()
    del value, work
    deadline = time.monotonic() + 10
    while alive() is not None and time.monotonic() < deadline:
        comm_stream.oldest()  # releases the tensors of finished work
        gc.collect()
    assert alive() is None


@on_ranks(2, by="provider")
def test_work_without_a_wait_keeps_tensors_in_flight_only(rank: Rank) -> None:
    comm_stream = comm_stream_of(rank, rank.comm)
    alive: deque[weakref.ref] = deque()
    most = 0
    for number in range(1000):
        tensor = _tensor(rank, 1 << 14)
        alive.append(weakref.ref(tensor))
        start(comm_stream, tensor)
        del tensor
        oldest = comm_stream.oldest()
        in_flight = 0 if oldest is None else number + 1 - oldest
        held = sum(ref() is not None for ref in alive)
        most = max(most, held)
        assert held <= in_flight, f"{held} tensors are held, {in_flight} operations are in flight"
        while alive and alive[0]() is None:
            alive.popleft()
        if number % 50 == 0:
            comm_stream.stream.synchronize()
    comm_stream.stream.synchronize()
    assert comm_stream.oldest() is None
    assert all(ref() is None for ref in alive)
    assert most <= 60


def _with_another_current_device(rank: Rank, default: int) -> None:
    """A default stream, by its handle, is that of the communicator's device."""
    import torch

    comm_stream, tensor = comm_stream_of(rank, rank.comm), _tensor(rank, 1000)
    torch.cuda.synchronize()
    ready = threading.Event()
    comm_stream.stream.launch(ready.wait)
    own, other = (torch.cuda.ExternalStream(default, device=device) for device in range(2))
    with torch.cuda.stream(own), torch.cuda.device(1):
        work = start(comm_stream, tensor)
        work.wait()
        assert other.query()
    assert not own.query()
    ready.set()
    own.synchronize()
    assert work.is_completed()


@pytest.mark.gpu
@pytest.mark.parametrize("default", [0, 1, 2])  # none, the legacy one, the thread's own
def test_the_default_stream_of_its_device_waits(launch: Launcher, default: int) -> None:
    gpu.require_devices(2)
    launch(1, _with_another_current_device, default, provider="cuda")


def _reset(rank: Rank, tensor: Any) -> None:  # noqa: ANN401
    _settled(rank, tensor).fill_(1)
    _settled(rank, tensor)


def _settled(rank: Rank, tensor: Any) -> Any:  # noqa: ANN401
    """The tensor, after all enqueued work."""
    if rank.device is not None:
        import torch

        torch.cuda.synchronize()
    return tensor


def _refused(text: str) -> contextlib.AbstractContextManager[object]:
    from pynccl.mirror.base.errors import BackendError

    return pytest.raises((ValueError, BackendError), match=text)


@on_ranks(2, by="provider")
def test_asynchronous_work_is_captured(rank: Rank) -> None:
    """Asynchronous work inside a capture joins it and becomes part of the graph."""
    comm_stream, stream = comm_stream_of(rank, rank.comm), rank.stream()
    first, second = _tensor(rank, 1000), _tensor(rank, 1000)
    start(comm_stream, first).wait()
    _reset(rank, first)
    with nccl.capture(stream) as graph:
        works = [start(comm_stream, first), start(comm_stream, second)]
        with _refused("captured into a graph"):
            works[0].is_completed()
        for work in works:
            work.wait()
        rank.comm.all_reduce(first)
    assert (_settled(rank, first) == 1).all()
    start(comm_stream, second).wait()  # the events of the capture are free again
    _reset(rank, second)
    for replay in range(1, 4):
        graph.launch()
        stream.synchronize()
        assert (_settled(rank, first) == float(rank.nranks) ** (2 * replay)).all()
        assert (_settled(rank, second) == float(rank.nranks) ** replay).all()
        start(comm_stream, _tensor(rank, 10)).wait()  # between launches
    graph.close()


@on_ranks(2, by="provider")
def test_captured_work_without_a_wait(rank: Rank) -> None:
    """On GPUs the graph runs it. hostnccl requires the join. Later captures are not affected."""
    comm_stream, stream, tensor = comm_stream_of(rank, rank.comm), rank.stream(), _tensor(rank, 10)
    start(comm_stream, tensor).wait()
    for _ in range(3):
        joins: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if rank.device is None:
            joins = pytest.raises(nccl.DriverError, match="CUDA_ERROR_STREAM_CAPTURE_UNJOINED")
        with joins, nccl.capture(stream) as graph:  # frees the graph of the iteration before
            work = start(comm_stream, tensor)
        with _refused("capture has ended"):
            work.wait()
        if rank.device is not None:
            _reset(rank, tensor)
            graph.launch()
            stream.synchronize()
            assert (tensor == rank.nranks).all()
        _reset(rank, tensor)
        start(comm_stream, tensor).wait()
        assert (_settled(rank, tensor) == rank.nranks).all()


@on_ranks(2, by="provider")
def test_captured_work_needs_a_wait_in_its_capture(rank: Rank) -> None:
    """A wait elsewhere is an error that invalidates no capture."""
    comm_stream, tensor = comm_stream_of(rank, rank.comm), _tensor(rank, 10)
    first, second = rank.stream(), rank.stream()
    start(comm_stream, tensor).wait()
    with nccl.capture(first, mode="relaxed") as outer:
        work = start(comm_stream, tensor)
        with nccl.capture(second) as inner:
            with _refused("the stream is being captured into another one"):
                work.wait()
            rank.comm.all_reduce(tensor)
        work.wait()
    with nccl.capture(first) as later:
        with _refused("capture has ended"):
            work.wait()
        rank.comm.all_reduce(tensor)
    _reset(rank, tensor)
    for graph in (outer, inner, later):
        graph.launch(first)
    first.synchronize()
    assert (tensor == rank.nranks**3).all()
    if rank.device is None:
        return
    import torch

    side = torch.cuda.Stream(rank.device)
    by_torch = torch.cuda.CUDAGraph()
    with torch.cuda.graph(by_torch):
        work = start(comm_stream, tensor)
        with torch.cuda.stream(side):
            work.wait()  # the stream joins the capture
        torch.cuda.current_stream().wait_stream(side)
    _reset(rank, tensor)
    by_torch.replay()
    assert (_settled(rank, tensor) == rank.nranks).all()


@on_ranks(2, by="provider")
def test_priorities(rank: Rank) -> None:
    ordinary = rank.stream()
    assert ordinary.priority == 0
    high, low, beyond = (
        nccl.Stream(rank.provider, device=rank.device, priority=p) for p in (-1, 5, -1000)
    )
    assert high.priority == -1
    assert low.priority == 0  # no device has a lower one than the default
    assert beyond.priority <= -1  # the greatest there is
    tensor = rank.memory.put(np.ones(1000, np.float32))
    for stream in (high, low, beyond):
        rank.comm.all_reduce(tensor, stream=stream)
        stream.synchronize()
    assert (rank.memory.get(tensor) == rank.nranks**3).all()
    with pytest.raises(TypeError):
        nccl.Stream(rank.provider, priority="high")


@on_ranks(2, by="provider")
def test_every_form_of_a_stream(rank: Rank) -> None:
    """Objects, protocols, handles and the default streams."""
    stream = rank.stream()

    class Torch:
        cuda_stream = stream.handle

    class CuPy:
        ptr = stream.handle

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.handle

    assert stream.__cuda_stream__() == (0, stream.handle)
    assert stream.device == (rank.device or 0)
    tensor = rank.memory.put(np.ones(1000, np.float32))
    forms = [stream, stream.handle, Torch(), CuPy(), Protocol()]
    if rank.device is not None:
        import torch

        forms.append(torch.cuda.ExternalStream(stream.handle, torch.device("cuda", rank.device)))
    for form in forms:
        rank.comm.all_reduce(tensor, stream=form)
    stream.synchronize()
    done = rank.nranks ** len(forms)
    assert (rank.memory.get(tensor) == done).all()
    for default in (0, 1, 2):  # none, the legacy one, the thread's own
        rank.comm.all_reduce(tensor, stream=default)
        done *= rank.nranks
        assert (rank.memory.get(tensor) == done).all()
