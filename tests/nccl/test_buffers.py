"""Proves that tensors on GPUs, Buffers, addresses and misaligned memory can be reduced, and that
memory in use is not freed. test_array_values.py tests arrays of every dtype and layout on CPUs.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import dtypes, gpu, reference
from tests.support.memory import GUARD, HostMemory, OnlyDlpack
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


class _OnlyCudaArrayInterface:
    def __init__(self, tensor: Any) -> None:  # noqa: ANN401
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__
        self._tensor = tensor


def _parameter(tensor: Any) -> Any:  # noqa: ANN401
    import torch

    return torch.nn.Parameter(tensor)


# The forms in which the same memory is passed.
_FORMS: dict[str, Callable[[Any], Any]] = {
    "torch tensor": lambda tensor: tensor,
    "torch parameter": _parameter,
    "only __dlpack__": OnlyDlpack,
    "only __cuda_array_interface__": _OnlyCudaArrayInterface,
}


@pytest.mark.gpu
@on_ranks(2, provider="cuda")
def test_every_form_of_a_buffer(rank: Rank) -> None:
    """In place and out of place. test_array_values.py tests those of CPUs."""
    total = np.arange(5, dtype=np.float32) * sum(range(1, rank.nranks + 1))
    own = np.arange(5, dtype=np.float32) * (rank.rank + 1)
    stream = rank.stream()
    for name, form in _FORMS.items():
        for in_place in (True, False):
            source, target = rank.memory.put(own), rank.memory.put(np.zeros_like(own))
            out = None if in_place else form(target)
            rank.comm.all_reduce(form(source), out=out, stream=stream)
            stream.synchronize()
            np.testing.assert_array_equal(
                rank.memory.get(source if in_place else target), total, err_msg=name
            )


def _address(buffer: Any) -> int:  # noqa: ANN401
    address: int = buffer.ctypes.data if isinstance(buffer, np.ndarray) else buffer.data_ptr()
    return address


@on_ranks(2, by="provider")
def test_addresses(rank: Rank) -> None:
    """Integer addresses with count and with dtype in each form."""
    own = np.full(6, rank.rank + 1.0, np.float32)
    stream = rank.stream()
    for dtype in ("float32", np.float32, np.dtype(np.float32), raw.ncclFloat32):
        source, target = rank.memory.put(own), rank.memory.put(np.zeros_like(own))
        rank.comm.all_reduce(
            _address(source), out=_address(target), count=own.size, dtype=dtype, stream=stream
        )
        rank.comm.all_reduce(_address(source), count=own.size, dtype=dtype, stream=stream)
        stream.synchronize()
        total = sum(range(1, rank.nranks + 1))
        np.testing.assert_array_equal(rank.memory.get(target), np.full_like(own, total))
        np.testing.assert_array_equal(rank.memory.get(source), np.full_like(own, total))


@on_ranks(3)
def test_misaligned_memory(rank: Rank) -> None:
    """Every dtype at every offset from its alignment, by array and by address."""
    memory = HostMemory()
    for name in dtypes.ALL:
        width = dtypes.numpy_dtype(name).itemsize
        op = dtypes.operators(name)[0]
        red_op = getattr(nccl.RedOp, op)
        for offset in {1, width // 2, width - 1} - {0}:
            for count in (5, 6007):
                inputs = [
                    dtypes.sample(name, count, np.random.default_rng([count, r]))
                    for r in range(rank.nranks)
                ]
                source = memory.put(inputs[rank.rank], offset)
                target = memory.put(np.zeros(count, source.dtype), offset)
                assert source.ctypes.data % width or width == 1
                rank.comm.all_reduce(source, red_op, out=target)
                reference.check(memory.get(target), inputs, op, exact=True)
                rank.comm.all_reduce(source.ctypes.data, red_op, count=count, dtype=source.dtype)
                reference.check(memory.get(source), inputs, op, exact=True)
                gathered = memory.put(np.zeros(count * rank.nranks, source.dtype), offset)
                own = memory.put(inputs[rank.rank], width - offset)
                rank.comm.all_gather(own, out=gathered)
                reference.check_bits(memory.get(gathered), np.concatenate(inputs))


@on_ranks(2, by="provider")
def test_allocated_buffers(rank: Rank) -> None:
    import torch

    comm = rank.comm
    buffer = comm.mem_alloc((3, 5), "float32")
    assert (buffer.shape, buffer.dtype, buffer.nbytes) == ((3, 5), "float32", 60)
    tensor = torch.from_dlpack(buffer)  # type: ignore[attr-defined]
    assert tensor.data_ptr() == buffer.ptr
    assert tensor.shape == (3, 5)
    tensor.fill_(rank.rank + 1)
    with comm.register(buffer) as registration:
        assert isinstance(registration.handle, int)
        stream = rank.stream()
        if rank.device is not None:
            torch.cuda.synchronize(rank.device)
        comm.all_reduce(buffer, stream=stream)
        stream.synchronize()
    assert (tensor.cpu() == sum(range(1, rank.nranks + 1))).all()
    # The memory lives as long as the last view of it.
    gone = weakref.ref(buffer)
    del buffer, registration
    tensor += 1
    assert gone() is not None
    del tensor
    assert gone() is None
    for dtype in (name for name in dtypes.ALL if name not in gpu.without(rank.provider)):
        allocated, gathered = comm.mem_alloc(3, dtype), comm.mem_alloc(3 * rank.nranks, dtype)
        assert allocated.nbytes == 3 * dtypes.numpy_dtype(dtype).itemsize
        comm.all_gather(allocated, out=gathered, stream=stream)
        stream.synchronize()
        allocated.close()
        with pytest.raises(ValueError, match="closed"):
            _ = allocated.ptr
    assert comm.mem_alloc(0).nbytes == 0
    with pytest.raises(ValueError, match="shape: -1 is negative"):
        comm.mem_alloc(-1)
    with pytest.raises(ValueError, match="does not fit"):
        comm.mem_alloc((2**62, 2**62), "float64")


@pytest.mark.parametrize("close", [False, True])
@on_ranks(2, by="provider")
def test_memory_in_use_is_not_freed(rank: Rank, close: bool) -> None:
    """The stream still sends from the memory when its last reference is deleted."""
    stream, received = rank.stream(), rank.memory.put(np.zeros(1000, np.float32))
    buffer = rank.comm.mem_alloc(1000, "float32")
    rank.comm.all_reduce(received, out=buffer)
    begin = threading.Event()
    stream.launch(begin.wait)
    rank.comm.all_reduce(buffer, out=received, stream=stream)
    threading.Timer(0.2, begin.set).start()
    if close:
        buffer.close()
    del buffer
    stream.synchronize()
    assert not rank.memory.get(received).any()


@on_ranks(2, by="provider", threads=True)
def test_freeing_waits_for_no_other_rank(rank: Rank) -> None:
    """The other rank's stream waits for this thread, which must not wait for that stream."""
    array = rank.memory.put(np.ones(4, np.float32))
    rank.comm.all_reduce(array)
    buffer = rank.comm.mem_alloc(4, "float32")
    stream = rank.stream()
    if rank.rank == 0:
        time.sleep(0.2)
        buffer.close()
    rank.comm.all_reduce(array, stream=stream)
    stream.synchronize()
    assert (rank.memory.get(array) == 4).all()


def test_a_write_outside_would_be_noticed() -> None:
    array = HostMemory().put(np.zeros(3))
    ctypes.memset(array.ctypes.data + array.nbytes + GUARD - 1, 0, 1)
    with pytest.raises(AssertionError, match="outside"):
        HostMemory().get(array)
