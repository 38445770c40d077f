"""Proves the collectives of torch.distributed over the mirror and over the backend: unequal parts,
operators and dtypes of NCCL, coalescing, objects.

test_against_torch.py compares values with gloo; these tests cover what gloo lacks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch.distributed import ReduceOp

from tests.c10d.in_torch import cpu_communicator
from tests.support.ranks import on_ranks

SIZES = (2, 4)
in_both_modes = pytest.mark.parametrize("async_op", [False, True])
over_the_backend = on_ranks(2, 4, fixture="backend_world")


def _finish(work: Any, async_op: bool) -> None:
    """Wait for an asynchronous operation; a synchronous one has no work."""
    assert (work is not None) == async_op
    if work is not None:
        assert work.wait()
        if torch.get_default_device().type != "cpu":
            torch.cuda.synchronize()  # only the current stream has waited
        assert work.is_completed()
        assert work.is_success()


def _values(rank: int, count: int = 7) -> torch.Tensor:
    return torch.arange(count) % 3 + rank + 1.0


@over_the_backend
def test_operators_of_nccl(dist: Any, rank: int, size: int) -> None:
    mean = sum(_values(r) for r in range(size)) / size
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = _values(rank).to(dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        assert torch.equal(tensor, mean.to(dtype))
    output = torch.empty(7)
    dist.reduce_scatter_tensor(output, _values(rank).repeat(size), ReduceOp.AVG)
    assert torch.equal(output, mean)
    ones = float(sum(range(1, size + 1)))
    for factor in (0.5, torch.tensor([0.5])):
        op = dist._make_nccl_premul_sum(factor)
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [ones / 2] * 3
        output = torch.empty(1)
        dist.reduce_scatter_tensor(output, torch.full((size,), rank + 1.0), op)
        assert output.tolist() == [ones / 2]


@over_the_backend
def test_dtypes_that_nccl_lacks(dist: Any, rank: int, size: int) -> None:
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False, True]
    number = torch.tensor([complex(rank, 1)])
    dist.all_reduce(number)
    assert number.item() == complex(sum(range(size)), size)
    for dtype in (torch.int16, torch.complex64, torch.bool, torch.float8_e5m2):
        tensor = torch.ones(3).to(dtype) if rank == 1 else torch.zeros(3).to(dtype)
        dist.broadcast(tensor, 1)
        assert tensor.to(torch.complex64).real.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@on_ranks(1)
def test_float8_is_moved_as_bytes(rank: int, size: int, dtype: torch.dtype) -> None:
    """Libraries before NCCL 2.24 do not have its dtypes."""
    torch_dist.broadcast(torch.zeros(3).to(dtype), 0)
    record = cpu_communicator().flight_record()[-1]
    assert (record.operation, record.dtype, record.count) == ("broadcast", "uint8", 3)


@pytest.mark.filterwarnings("ignore")
@over_the_backend
def test_lists_of_tensors(dist: Any, rank: int, size: int) -> None:
    """Each rank has two tensors, whose sizes differ between ranks."""
    inputs = [_values(rank, count=rank + 1), _values(rank, count=5)]
    outputs = [[torch.empty(r + 1), torch.empty(5)] for r in range(size)]
    dist.all_gather_coalesced(outputs, inputs)
    for r, (first, second) in enumerate(outputs):
        assert torch.equal(first, _values(r, count=r + 1))
        assert torch.equal(second, _values(r, count=5))
    with pytest.raises(ValueError, match=f"tensor_list: expected {size} lists.*got 1"):
        dist.all_gather_coalesced(outputs[:1], inputs)
    dist.all_reduce_coalesced(inputs[1:], ReduceOp.MAX)
    assert torch.equal(inputs[1], _values(size - 1, count=5))


@over_the_backend
def test_receive_from_any(dist: Any, rank: int, size: int) -> None:
    tensor = torch.full((3,), float(rank))
    if size > 2:
        with pytest.raises(ValueError, match=f"src or group_src.* has {size}"):
            dist.recv(tensor)
    elif rank == 0:
        dist.send(tensor, 1)
    else:
        assert dist.recv(tensor) == 0
        assert tensor.tolist() == [0.0] * 3


@over_the_backend
def test_operators_of_a_coalesced_call(dist: Any, rank: int, size: int) -> None:
    """The coalescing manager uses the first operator; a coalesced call of the group, each one."""
    tensors = [_values(rank) for _ in range(3)]
    factors = (None, 0.5, 4.0)
    group, device = dist.group.WORLD, torch.get_default_device()
    group._start_coalescing(device)
    for tensor, factor in zip(tensors, factors, strict=True):
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(factor) if factor else ReduceOp.SUM
        group.allreduce([tensor], options)
    group._end_coalescing(device).wait()
    sum_of_all = sum(_values(r) for r in range(size))
    for tensor, factor in zip(tensors, factors, strict=True):
        assert torch.equal(tensor, sum_of_all * (factor or 1.0))


@in_both_modes
@on_ranks(2, fixture="each_world")
def test_channels_last(dist: Any, rank: int, size: int, async_op: bool) -> None:
    image = torch.arange(120.0).reshape(4, 5, 2, 3).to(memory_format=torch.channels_last)
    volume = image.reshape(2, 5, 2, 3, 2).to(memory_format=torch.channels_last_3d)
    for data in (image, volume):
        total, reduced, copy = data.clone(), data.clone(), data * rank
        assert not total.is_contiguous()
        _finish(dist.all_reduce(total, async_op=async_op), async_op)
        _finish(dist.reduce(reduced, 1, async_op=async_op), async_op)
        _finish(dist.broadcast(copy, 1, async_op=async_op), async_op)
        assert torch.equal(total, data * size)
        assert rank == 0 or torch.equal(reduced, data * size)
        assert torch.equal(copy, data)


@in_both_modes
@on_ranks(*SIZES, fixture="each_world")
def test_unequal_parts(dist: Any, rank: int, size: int, async_op: bool) -> None:
    """Shapes differ between ranks; some are empty or zero-dimensional."""
    own = torch.full((rank, 2), float(rank))
    outs = [torch.empty(peer, 2) for peer in range(size)]
    _finish(dist.all_gather(outs, own, async_op=async_op), async_op)
    assert all(torch.equal(o, torch.full((p, 2), float(p))) for p, o in enumerate(outs))

    # A zero-dimensional element, received into a one-dimensional tensor.
    outs = [torch.empty(1) for _ in range(size)]
    _finish(dist.all_gather(outs, torch.tensor(float(rank)), async_op=async_op), async_op)
    assert [o.item() for o in outs] == list(range(size))

    sent = [torch.full((rank + peer,), 10 * rank + peer) for peer in range(size)]
    outs = [torch.empty(rank + peer, dtype=torch.int64) for peer in range(size)]
    _finish(dist.all_to_all(outs, sent, async_op=async_op), async_op)
    assert all(o.tolist() == [10 * p + rank] * (rank + p) for p, o in enumerate(outs))

    splits = [rank + peer for peer in range(size)]
    flat, out = torch.cat(sent), torch.empty(sum(splits), dtype=torch.int64)
    _finish(dist.all_to_all_single(out, flat, splits, splits, async_op=async_op), async_op)
    assert torch.equal(out, torch.cat(outs))

    inputs = [torch.full((peer + 1,), float(rank)) for peer in range(size)]
    mine = torch.empty(rank + 1)
    _finish(dist.reduce_scatter(mine, inputs, async_op=async_op), async_op)
    assert mine.tolist() == [sum(range(size))] * (rank + 1)


@pytest.mark.parametrize("async_ops", [False, True])
@over_the_backend
def test_coalescing(dist: Any, rank: int, size: int, async_ops: bool) -> None:
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 5, 0)]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for tensor in tensors:
            work = dist.all_reduce(tensor, async_op=async_ops)
            if async_ops:
                with pytest.raises(ValueError, match="IllegalWork"):
                    work.wait()
            assert tensor.numel() == 0 or tensor[0] == rank + tensor.numel()  # not issued yet
    if async_ops:
        manager.wait()
    assert [t.tolist() for t in tensors] == [
        [n * size + size * (size - 1) / 2] * n for n in (1, 5, 0)
    ]

    outs = [torch.empty(size * n) for n in (1, 2)]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for n, out in zip((1, 2), outs, strict=True):
            dist.all_gather_into_tensor(out, torch.full((n,), float(rank)))
    manager.wait()
    assert outs[1].tolist() == [float(peer) for peer in range(size) for _ in range(2)]

    outs = [torch.empty(n) for n in (1, 2)]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for n, out in zip((1, 2), outs, strict=True):
            dist.reduce_scatter_tensor(out, torch.ones(n * size))
    manager.wait()
    assert outs[1].tolist() == [float(size)] * 2

    # With a device, operations of all kinds are coalesced.
    tensor, received = torch.ones(2), torch.empty(1)
    with dist._coalescing_manager(device=tensor.device, async_ops=async_ops) as manager:
        dist.all_reduce(tensor)
        dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    manager.wait()
    assert (tensor[0], received.item()) == (size, (rank - 1) % size)


@on_ranks(*SIZES, fixture="each_world")
def test_objects(dist: Any, rank: int, size: int) -> None:
    mine = {"rank": rank, "data": "x" * (10 ** (rank + 1)), "tensor": torch.full((2,), rank)}
    every: list[Any] = [None] * size
    dist.all_gather_object(every, mine)
    assert [(o["rank"], len(o["data"])) for o in every] == [
        (peer, 10 ** (peer + 1)) for peer in range(size)
    ]
    last = size - 1
    every = [None] * size
    dist.gather_object(mine, every if rank == last else None, dst=last)
    assert rank != last or [o["rank"] for o in every] == list(range(size))
    with pytest.raises(ValueError, match="must be specified"):
        dist.gather_object(mine, None, dst=rank)
    some = [mine, rank, None] if rank == 1 else [0, 0, 0]
    dist.broadcast_object_list(some, src=1)
    assert (some[0]["rank"], some[1:]) == (1, [1, None])
    got: list[Any] = [None, "kept"]
    dist.scatter_object_list(got, [("for", p) for p in range(size)] if rank == 0 else None)
    assert got == [("for", rank), "kept"]
    with pytest.raises(ValueError, match="size at least 1"):
        dist.scatter_object_list([], None)
    for use_batch in (False, True):
        if rank == 0:
            dist.send_object_list([mine, "second"], dst=1, use_batch=use_batch)
        elif rank == 1:
            pair: list[Any] = [None, None]
            assert dist.recv_object_list(pair, src=0, use_batch=use_batch) == 0
            assert (pair[0]["rank"], pair[1]) == (0, "second")
    with pytest.raises(ValueError, match="Invalid destination rank"):
        dist.send_object_list([1], dst=rank)
