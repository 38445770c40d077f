"""Proves that every operation of torch.distributed gives the right result over the backend, with
2 and 4 ranks, synchronous and asynchronous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

World = Callable[..., list[Any]]

pytestmark = pytest.mark.parametrize("nranks", [2, 4])
both_modes = pytest.mark.parametrize("async_op", [False, True])


def _finish(work: dist.Work | None) -> None:
    """Wait for an asynchronous operation."""
    if work is not None:
        assert work.wait()
        if torch.get_default_device().type != "cpu":
            torch.cuda.synchronize()  # only the current stream has waited
        assert work.is_completed()
        assert work.is_success()


def _values(rank: int, dtype: torch.dtype = torch.float32, count: int = 7) -> torch.Tensor:
    """Values of a rank that sums of 4 ranks represent exactly in every dtype."""
    return (torch.arange(count) % 3 + rank + 1).to(dtype)


def _all_reduces(rank: int, size: int, async_op: bool) -> None:
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32]
    dtypes += [torch.int64, torch.int8, torch.uint8]
    expected: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
        ReduceOp.SUM: lambda all_: all_.sum(0),
        ReduceOp.PRODUCT: lambda all_: all_.prod(0),
        ReduceOp.MIN: lambda all_: all_.min(0).values,
        ReduceOp.MAX: lambda all_: all_.max(0).values,
        ReduceOp.AVG: lambda all_: all_.sum(0) / size,
    }
    for dtype in dtypes:
        all_ = torch.stack([_values(r, torch.float64) for r in range(size)])
        for op, reference in expected.items():
            if op == ReduceOp.PRODUCT and dtype in (torch.int8, torch.uint8):
                continue  # overflows
            if op == ReduceOp.AVG and not dtype.is_floating_point:
                continue
            tensor = _values(rank, dtype)
            _finish(dist.all_reduce(tensor, op, async_op=async_op))
            torch.testing.assert_close(tensor, reference(all_).to(dtype))


@both_modes
def test_all_reduce(torch_world: World, nranks: int, async_op: bool) -> None:
    torch_world(nranks, _all_reduces, async_op)


def _pre_mul_sum(rank: int, size: int) -> None:
    ones = float(sum(range(1, size + 1)))
    for factor in (0.5, torch.tensor([0.5])):
        op = dist._make_nccl_premul_sum(factor)
        tensor = torch.full((3,), rank + 1.0)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [ones / 2] * 3
        output = torch.empty(1)
        dist.reduce_scatter_tensor(output, torch.full((size,), rank + 1.0), op)
        assert output.tolist() == [ones / 2]


def test_pre_mul_sum(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _pre_mul_sum)


def _other_dtypes(rank: int, size: int) -> None:
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


def test_dtypes_that_nccl_lacks(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _other_dtypes)


def _rooted(rank: int, size: int, async_op: bool) -> None:
    for root in range(size):
        tensor = _values(rank)
        _finish(dist.broadcast(tensor, root, async_op=async_op))
        assert torch.equal(tensor, _values(root))
        tensor = _values(rank)
        _finish(dist.reduce(tensor, root, async_op=async_op))
        if rank == root:
            assert torch.equal(tensor, sum(_values(r) for r in range(size)))
        parts = [torch.empty(7) for _ in range(size)] if rank == root else None
        _finish(dist.gather(_values(rank), parts, dst=root, async_op=async_op))
        if parts is not None:
            assert all(torch.equal(part, _values(r)) for r, part in enumerate(parts))
        tensor = torch.empty(7)
        given = [_values(r + root) for r in range(size)] if rank == root else None
        _finish(dist.scatter(tensor, given, src=root, async_op=async_op))
        assert torch.equal(tensor, _values(rank + root))


@both_modes
def test_rooted_collectives(torch_world: World, nranks: int, async_op: bool) -> None:
    torch_world(nranks, _rooted, async_op)


def _gathers(rank: int, size: int, async_op: bool) -> None:
    parts = [torch.empty(7) for _ in range(size)]
    _finish(dist.all_gather(parts, _values(rank), async_op=async_op))
    assert all(torch.equal(part, _values(r)) for r, part in enumerate(parts))
    uneven = [torch.empty(r + 1) for r in range(size)]
    _finish(dist.all_gather(uneven, torch.full((rank + 1,), float(rank)), async_op=async_op))
    assert [part.tolist() for part in uneven] == [[float(r)] * (r + 1) for r in range(size)]
    whole = torch.empty(7 * size)
    _finish(dist.all_gather_into_tensor(whole, _values(rank), async_op=async_op))
    assert torch.equal(whole, torch.cat([_values(r) for r in range(size)]))


@both_modes
def test_all_gather(torch_world: World, nranks: int, async_op: bool) -> None:
    torch_world(nranks, _gathers, async_op)


def _reduce_scatters(rank: int, size: int, async_op: bool) -> None:
    expected = sum(_values(r + rank) for r in range(size))
    output = torch.empty(7)
    parts = [_values(rank + r) for r in range(size)]
    _finish(dist.reduce_scatter(output, parts, async_op=async_op))
    assert torch.equal(output, expected)
    output = torch.empty(7)
    _finish(dist.reduce_scatter_tensor(output, torch.cat(parts), ReduceOp.AVG, async_op=async_op))
    torch.testing.assert_close(output, expected / size)
    output = torch.empty(rank + 1)
    uneven = [torch.full((r + 1,), float(rank)) for r in range(size)]
    _finish(dist.reduce_scatter(output, uneven, async_op=async_op))
    assert output.tolist() == [float(sum(range(size)))] * (rank + 1)


@both_modes
def test_reduce_scatter(torch_world: World, nranks: int, async_op: bool) -> None:
    torch_world(nranks, _reduce_scatters, async_op)


def _all_to_alls(rank: int, size: int, async_op: bool) -> None:
    output = torch.empty(size)
    sent = torch.tensor([float(10 * rank + peer) for peer in range(size)])
    expected = torch.tensor([float(10 * peer + rank) for peer in range(size)])
    _finish(dist.all_to_all_single(output, sent, async_op=async_op))
    assert torch.equal(output, expected)
    outputs = [torch.empty(2) for _ in range(size)]
    inputs = [torch.full((2,), float(10 * rank + peer)) for peer in range(size)]
    _finish(dist.all_to_all(outputs, inputs, async_op=async_op))
    assert [part[0].item() for part in outputs] == expected.tolist()
    # Rank r sends (r + peer) rows of 3 to each peer, none from 0 to 0.
    splits = [rank + peer for peer in range(size)]
    rows = torch.full((sum(splits), 3), float(rank))
    output = torch.empty(sum(splits), 3)
    _finish(dist.all_to_all_single(output, rows, splits, splits, async_op=async_op))
    assert output[:, 1].tolist() == [float(p) for p in range(size) for _ in range(rank + p)]


@both_modes
def test_all_to_all(torch_world: World, nranks: int, async_op: bool) -> None:
    torch_world(nranks, _all_to_alls, async_op)


def _messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    # A ring of blocking calls, then one of unordered ones.
    tensor = torch.empty(3)
    if rank == 0:
        dist.send(torch.ones(3), right)
        assert dist.recv(tensor, left) == left
        assert tensor.tolist() == [float(size)] * 3
    else:
        dist.recv(tensor, left)
        dist.send(tensor + 1, right)
    tensor = torch.empty(3)
    works = [dist.isend(torch.full((3,), float(rank)), right), dist.irecv(tensor, left)]
    for work in works:
        work.wait()
    assert tensor.tolist() == [float(left)] * 3
    received = [torch.empty(2) for _ in range(size)]
    batch = []
    for peer in range(size):
        if peer != rank:
            batch.append(dist.P2POp(dist.isend, torch.full((2,), float(rank)), peer))
            batch.append(dist.P2POp(dist.irecv, received[peer], peer))
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    others = [peer for peer in range(size) if peer != rank]
    assert [received[peer][0].item() for peer in others] == [float(peer) for peer in others]


def test_messages(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _messages)


def _coalesced(rank: int, size: int) -> None:
    tensors = [_values(rank), _values(rank + 1, count=3)]
    dist.all_reduce_coalesced(tensors)
    assert torch.equal(tensors[0], sum(_values(r) for r in range(size)))
    assert torch.equal(tensors[1], sum(_values(r + 1, count=3) for r in range(size)))
    tensors = [_values(rank), _values(rank + 1)]
    device = torch.get_default_device()
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert torch.equal(tensors[1], sum(_values(r + 1) for r in range(size)))
    wholes = [torch.empty(7 * size), torch.empty(7 * size)]
    with dist._coalescing_manager():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, _values(rank))
    assert torch.equal(wholes[1], torch.cat([_values(r) for r in range(size)]))
    outputs = [torch.empty(1), torch.empty(1)]
    with dist._coalescing_manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, torch.full((size,), float(rank)))
    assert outputs[1].item() == float(sum(range(size)))
    tensors = [_values(rank) for _ in range(3)]
    factors = (None, 0.5, 4.0)
    group = dist.distributed_c10d._get_default_group()
    group._start_coalescing(device)  # the coalescing manager takes the operator of the first
    for tensor, factor in zip(tensors, factors, strict=True):
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(factor) if factor else ReduceOp.SUM
        group.allreduce([tensor], options)
    group._end_coalescing(device).wait()
    sum_of_all = sum(_values(r) for r in range(size))
    for tensor, factor in zip(tensors, factors, strict=True):
        torch.testing.assert_close(tensor, sum_of_all * (factor or 1.0))


def test_coalesced(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _coalesced)


def _gathered_lists(rank: int, size: int) -> None:
    """Each rank has two tensors; other ranks' may be of other sizes."""
    inputs = [_values(rank, count=rank + 1), _values(rank, count=5)]
    outputs = [[torch.empty(r + 1), torch.empty(5)] for r in range(size)]
    dist.all_gather_coalesced(outputs, inputs)
    for r, (first, second) in enumerate(outputs):
        assert torch.equal(first, _values(r, count=r + 1))
        assert torch.equal(second, _values(r, count=5))
    with pytest.raises(ValueError, match=f"tensor_list: expected {size} lists.*got 1"):
        dist.all_gather_coalesced(outputs[:1], inputs)


@pytest.mark.filterwarnings("ignore")
def test_all_gather_coalesced(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _gathered_lists)


def _any_source(rank: int, size: int) -> None:
    tensor = torch.full((3,), float(rank))
    if size > 2:
        with pytest.raises(ValueError, match=f"src: NCCL cannot receive from any of {size - 1}"):
            dist.recv(tensor)
    elif rank == 0:
        dist.send(tensor, 1)
    else:
        assert dist.recv(tensor) == 0
        assert tensor.tolist() == [0.0] * 3


def test_receive_from_any(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _any_source)


def _groups_and_objects(rank: int, size: int) -> None:
    dist.barrier()
    dist.barrier(device_ids=[rank])  # of the accelerator, which is not there: ignored, as by gloo
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    group = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [2.0, 2.0]
        assert dist.get_backend(group) == "pynccl"
    assert dist.get_backend_config() == "cpu:pynccl,cuda:pynccl"


def test_groups_and_objects(torch_world: World, nranks: int) -> None:
    torch_world(nranks, _groups_and_objects)


def _send_first(rank: int, _size: int) -> None:
    """Both ranks of a pair send before they receive."""
    peer = rank ^ 1
    for step in range(2):
        tensor = torch.full((3,), float(rank))
        dist.send(tensor + step, peer)
        dist.recv(tensor, peer)
        assert tensor.tolist() == [float(peer) + step] * 3


def test_both_ranks_send_first(torch_world: Callable[..., list[Any]], nranks: int) -> None:
    torch_world(nranks, _send_first)
