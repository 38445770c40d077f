"""Proves torch's windows over the backend: puts, signals, their order, refusals, mapped memory."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pynccl import memory
from tests.c10d.in_torch import backend_of, cpu_communicator, set_event, wait_event
from tests.support.blocking import wait_until_blocked
from tests.support.ranks import on_ranks

_c10d: Any = pytest.importorskip("torch._C._distributed_c10d")
_dist: Any = dist

pytestmark = pytest.mark.skipif(
    not hasattr(_c10d, "Window"), reason=f"torch {torch.__version__} has no windows"
)


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in memory that NCCL can share between ranks."""
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    flat = memory.torch_empty(cpu_communicator(), nbytes, "uint8").zero_()
    return flat.view(dtype).view(shape)


def _issued() -> int:
    """The number of operations that the communicator has issued."""
    sequence: int = cpu_communicator().flight_record()[-1].sequence
    return sequence


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float8_e5m2]
)
@on_ranks(2, 4)
def test_puts_around_a_ring(rank: int, size: int, dtype: torch.dtype) -> None:
    """Put a row to the next rank, then one element beyond it, asynchronously."""
    assert _dist._supports_window()
    after, before = (rank + 1) % size, (rank - 1) % size
    tensor = _zeros(3, 4, dtype=dtype)
    bits = torch.tensor([1, 0, 1, 1])
    source = tensor[2].copy_((bits + rank) % 2)
    window = _dist._new_window(tensor)
    window.put(source, after, 0, False)
    window.wait_signal(before, False)
    put = window.put(source[3:], after, 7, True)
    wait = window.wait_signal(before, True)
    put.wait()
    wait.wait()
    assert put.is_success()
    received = ((bits + before) % 2).tolist()
    assert tensor[:2].flatten().long().tolist() == [*received, 0, 0, 0, received[3]]
    window.tensor_deregister()


@on_ranks(2, 4)
def test_a_wait_sees_the_puts_before_its_signal(rank: int, size: int) -> None:
    """Each wait sees the puts up to its signal; the last one sees all, also of other windows."""
    count = 50
    slots = _zeros(count * size, dtype=torch.int64)
    other = _zeros(1, dtype=torch.int64)
    sources = _zeros(count, dtype=torch.int64)
    sources.copy_(torch.arange(count) + 1)
    window, second = _dist._new_window(slots), _dist._new_window(other)
    third = _dist._new_window()
    third.tensor_register(sources)
    if rank != 0:
        for i in range(count):
            window.put(sources[i : i + 1], 0, count * rank + i, True)
        window.signal(0, True)
        second.put(sources[:1], 0, 0, True)
    else:
        for i in range(count):
            for peer in range(1, size):
                window.wait_signal(peer, False)
                mine = slots[count * peer : count * (peer + 1)]
                assert mine[: i + 1].tolist() == list(range(1, i + 2))
        for peer in range(1, size):  # signals belong to the group
            third.wait_signal(peer, False)
            second.wait_signal(peer, False)
        assert other.item() == 1
    for each in (window, second, third):
        each.tensor_deregister()


@on_ranks(2)
def test_a_wait_lasts_until_its_signal(rank: int, size: int) -> None:
    """A wait does not end before its signal is sent."""
    window = _dist._new_window(_zeros(1))
    if rank == 0:
        work = window.wait_signal(1, True)
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 50ms for wait_signal"):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
        set_event("waited")
        work.wait()
    else:
        wait_event("waited")
        window.signal(0, False)
    window.tensor_deregister()


@on_ranks(2)
def test_a_wait_has_its_time_limit(rank: int, size: int) -> None:
    window = _dist._new_window(_zeros(1))
    if rank == 1:
        options = _c10d.WaitSignalOptions()
        options.timeout = timedelta(milliseconds=100)
        with pytest.raises(dist.DistBackendError, match=r"wait_signal: .*within 0\.1 s"):
            window.wait_signal(0, False, options)
        set_event("expired")
    wait_event("expired")


@on_ranks(2, 4)
def test_sizes_that_differ(rank: int, size: int) -> None:
    """Sizes and dtypes may differ between ranks; those of the peer apply."""
    dtype = torch.float64 if rank == 0 else torch.float32
    tensor = _zeros(4 * (rank + 1), dtype=dtype)
    window = _dist._new_window(tensor)
    source = _zeros(8)
    sources = _dist._new_window(source)
    source.fill_(rank + 1)
    last = size - 1
    if rank == 0:
        window.put(source[:1], last, 4 * size - 1, False)  # beyond the own window
        with pytest.raises(ValueError, match=f"1 elements at {4 * size} end after the window of"):
            window.put(source[:1], last, 4 * size, False)
    if rank == last:
        window.wait_signal(0, False)
        assert tensor.tolist() == [0.0] * (4 * size - 1) + [1.0]
        with pytest.raises(ValueError, match="tensor: it has dtype Float, the window of rank 0"):
            window.put(source, 0, 0, False)
    sources.tensor_deregister()
    window.tensor_deregister()


@on_ranks(2)
def test_wrong_arguments_are_rejected_before_anything_is_sent(rank: int, size: int) -> None:
    tensor = _zeros(4, 4)
    window = _dist._new_window(tensor)
    row = tensor[0]
    issued = _issued()
    for match, call in {
        f"dst_rank: the group has ranks 0 to {size - 1}, got {size}": lambda: window.put(
            row, size, 0, False
        ),
        "dst_rank: .* got -1": lambda: window.put(row, -1, 0, True),
        "target_offset_nelems: 4 elements at 13 end after": lambda: window.put(row, 0, 13, False),
        "target_offset_nelems: 4 elements at -1": lambda: window.put(row, 0, -1, False),
        "target_offset_nelems: .* at 9223372036854775807": lambda: window.put(
            row, 0, 2**63 - 1, True
        ),
        "tensor: it has dtype Int, the window of rank 0 has Float": lambda: window.put(
            tensor.view(torch.int32)[0], 0, 0, False
        ),
        "tensor: it is not contiguous": lambda: window.put(tensor[:, 0], 0, 0, False),
        "tensor: it has no elements": lambda: window.put(row[:0], 0, 0, False),
        "tensor: its memory is not in a window of the group": lambda: window.put(
            torch.zeros(4), 0, 0, True
        ),
        "tensor: it is on meta": lambda: window.put(torch.zeros(4, device="meta"), 0, 0, True),
        f"peer_rank: .* got {size}$": lambda: window.signal(size, True),
        "peer_rank: .* got -1$": lambda: window.wait_signal(-1, False),
        f"rank: .* got {size}$": lambda: window.map_remote_tensor(size),
        f"peer_rank: .* got {size + 1}$": lambda: window.get_attr(size + 1),
        "tensor: the window already has one; deregister it first": lambda: window.tensor_register(
            _zeros(1)
        ),
        "window: .* time estimate": lambda: _during("time_estimate", window.tensor_deregister),
        "put: operations are being coalesced": lambda: _during(
            "coalescing", lambda: window.put(row, 0, 0, False)
        ),
    }.items():
        with pytest.raises(ValueError, match=match):
            call()
    assert _issued() == issued
    window.put(row, rank, 8, False)
    window.wait_signal(rank, False)
    window.tensor_deregister()


def _during(what: str, run: Callable[[], object]) -> None:
    backend = backend_of()
    getattr(backend, f"_start_{what}")()
    try:
        run()
    finally:
        getattr(backend, f"_end_{what}")()


def _aligned(nbytes: int) -> torch.Tensor:
    whole = torch.zeros(nbytes + 4096, dtype=torch.uint8)
    start = -whole.data_ptr() % 4096
    return whole[start : start + nbytes]


@on_ranks(2)
def test_memory_that_cannot_be_a_window(rank: int, size: int) -> None:
    """All ranks raise the error, and the group stays usable."""
    allocate = r"tensor: .*is not memory that NCCL can share.*allocate_tensor\(\).*torch_empty\(\)"
    with pytest.raises(ValueError, match=allocate):
        _dist._new_window(torch.zeros(4))
    with pytest.raises(ValueError, match=allocate):
        _dist._new_window(_aligned(4096))
    mine = torch.zeros(1024) if rank == 1 else _zeros(1024)
    with pytest.raises(ValueError, match=allocate if rank == 1 else "tensor: of rank 1: is not"):
        _dist._new_window(mine)
    window = _dist._new_window()
    with pytest.raises(ValueError, match=r"tensor: (of rank 0: )?has no elements"):
        window.tensor_register(_zeros(1024)[: 1024 * rank])
    whole = _zeros(4, 4)
    with pytest.raises(ValueError, match="tensor: it is not contiguous"):
        window.tensor_register(whole.t())
    with pytest.raises(ValueError, match="layout"):
        window.tensor_register(whole.to_sparse())
    with pytest.raises(ValueError, match="multiple of 4096 bytes"):
        window.tensor_register(whole[1])
    window.tensor_register(whole)
    second = _dist._new_window()
    with pytest.raises(ValueError, match="another window of this communicator begins at the same"):
        second.tensor_register(whole)
    window.tensor_deregister()
    second.tensor_register(whole)
    second.put(whole[rank], 1 - rank, 4 * (2 + rank), False)
    second.wait_signal(1 - rank, False)
    second.tensor_deregister()


@on_ranks(2)
def test_two_threads_register_at_once(rank: int, size: int) -> None:
    tensor, window = _zeros(4), _dist._new_window()
    if rank == 0:
        thread = threading.Thread(target=window.tensor_register, args=[tensor])
        thread.start()
        wait_until_blocked(thread)  # for rank 1
        with pytest.raises(ValueError, match="window: another thread is changing"):
            window.tensor_register(tensor)
        set_event("refused")
        thread.join()
    else:
        wait_event("refused")
        window.tensor_register(tensor)
    window.tensor_deregister()


@on_ranks(2, 4)
def test_deregistration_during_use_and_use_after_it(rank: int, size: int) -> None:
    """Both ranks deregister at once; all issued puts arrive first."""
    elements = 1 << 18
    tensor = _zeros(2, elements)
    window = _dist._new_window(tensor)
    tensor[1] = rank + 1
    works = [window.put(tensor[1], (rank + 1) % size, 0, True) for _ in range(20)]
    window.tensor_deregister()
    assert all(work.is_success() for work in works)
    assert torch.equal(tensor[0], torch.full((elements,), (rank - 1) % size + 1.0))
    row = tensor[0]
    for call in (
        lambda: window.put(row, 0, 0, False),
        lambda: window.signal(0, True),
        lambda: window.wait_signal(0, False),
        lambda: window.map_remote_tensor(0),
        lambda: window.get_attr(0),
        window.tensor_deregister,
    ):
        with pytest.raises(ValueError, match="window: it has no registered tensor"):
            call()
    # Another tensor, and a source that is no longer in a window.
    other = _zeros(4)
    window.tensor_register(other)
    with pytest.raises(ValueError, match="not in a window of the group"):
        window.put(row[:1], 0, 0, False)
    window.tensor_deregister()


@on_ranks(2, 4)
def test_deregistration_waits_for_the_puts_of_others(rank: int, size: int) -> None:
    tensor = _zeros(2)
    window = _dist._new_window(tensor)
    if rank == 0:
        tensor[1] = 5
        wait_event("begins")
        time.sleep(0.3)
        assert not dist.distributed_c10d._get_default_store().check(["event ended"])
        for peer in range(1, size):
            window.put(tensor[1:], peer, 0, True)
    elif rank == 1:
        set_event("begins")
    window.tensor_deregister()
    set_event("ended")
    assert rank == 0 or tensor[0].item() == 5


@on_ranks(2, 4)
def test_the_memory_of_a_peer(rank: int, size: int) -> None:
    tensor = _zeros(3, 2, dtype=torch.int32)
    tensor.fill_(rank)
    window = _dist._new_window(tensor)
    for peer in range(size):
        assert window.get_attr(peer).access_type == _c10d.WindowAccessType.UNIFIED
    dist.barrier()
    after, before = (rank + 1) % size, (rank - 1) % size
    peers = window.map_remote_tensor(after)
    assert peers.dtype == torch.int32
    assert peers.tolist() == [after] * 6
    dist.barrier()
    peers[5] = 100 + rank
    assert window.map_remote_tensor(rank).data_ptr() == tensor.data_ptr()
    dist.barrier()
    assert tensor.tolist() == [[rank] * 2, [rank] * 2, [rank, 100 + before]]
    window.tensor_deregister()
    dist.barrier()
    assert peers[5].item() == 100 + rank  # it outlives the window


@pytest.mark.parametrize("owning", [True, False])
@on_ranks(2)
def test_lifetime_of_the_tensor(rank: int, size: int, owning: bool) -> None:
    buffer = cpu_communicator().mem_alloc(8, "float32")
    memory_is_there = weakref.ref(buffer)
    tensor = torch.from_dlpack(buffer).fill_(rank)
    window = _dist._new_window()
    window.tensor_register(tensor, owning)
    window.put(tensor[4:], (rank + 1) % size, 0, False)
    window.wait_signal((rank - 1) % size, False)
    assert tensor.tolist() == [(rank - 1) % size] * 4 + [rank] * 4
    del buffer, tensor
    gc.collect()
    assert (memory_is_there() is not None) == owning
    window.tensor_deregister()
    gc.collect()
    assert memory_is_there() is None


@on_ranks(2)
def test_windows_of_a_group_that_is_closed(rank: int, size: int) -> None:
    window = _dist._new_window(_zeros(1))
    unused = _dist._new_window()
    backend_of().shutdown()
    with pytest.raises(dist.DistBackendError, match="is closed"):
        window.signal(0, False)
    with pytest.raises(dist.DistBackendError, match="is closed"):
        unused.tensor_register(torch.zeros(1))
