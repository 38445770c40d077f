"""Proves the collectives of the mirror: values, roots by both kinds of rank, lists with unequal
parts, every dtype, and that what is wrong is refused before anything is sent.

test_mirror_against_torch.py compares values with torch.distributed; here is what torch over gloo
cannot show.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import gpu

World = Callable[..., list[Any]]
SIZES = (2, 3, 4)


def _rooted(dist: Any, rank: int, size: int) -> None:
    import torch

    pg = dist.new_group([*range(1, size), 0], sort_ranks=False)
    for root in range(size):
        for group, root_ in ((None, {"src": root}), (pg, {"group_src": (root - 1) % size})):
            tensor = torch.full((2, 3), float(rank))
            assert dist.broadcast(tensor, group=group, **root_) is None
            assert torch.equal(tensor, torch.full((2, 3), float(root)))
            out = torch.empty(3, dtype=torch.int64)
            parts = [torch.full((3,), 10 * peer) for peer in dist.get_process_group_ranks(group)]
            dist.scatter(out, parts if rank == root else None, group=group, **root_)
            assert out.tolist() == [10 * rank] * 3
        for group, root_ in ((None, {"dst": root}), (pg, {"group_dst": (root - 1) % size})):
            tensor = torch.ones(4)
            dist.reduce(tensor, group=group, **root_)
            assert rank != root or tensor.tolist() == [float(size)] * 4
            outs = [torch.empty(1, dtype=torch.int32) for _ in range(size)]
            own = torch.tensor([rank], dtype=torch.int32)
            dist.gather(own, outs if rank == root else None, group=group, **root_)
            if rank == root:
                assert [int(o) for o in outs] == dist.get_process_group_ranks(group)
    tensor = torch.ones(1)
    with pytest.raises(ValueError, match="Can't specify both"):
        dist.broadcast(tensor, 0, group_src=0)
    with pytest.raises(ValueError, match="Must specify"):
        dist.reduce(tensor)
    with pytest.raises(ValueError, match="root: rank 9 is out of range"):
        dist.broadcast(tensor, 9)


@pytest.mark.parametrize("nranks", SIZES)
def test_roots(any_world: World, provider: str, nranks: int) -> None:
    gpu.spare(provider, nranks)
    any_world(nranks, _rooted)


def _unequal(dist: Any, rank: int, size: int, async_op: bool) -> None:
    """Shapes differ from rank to rank; some are empty, some have no dimension."""
    import torch

    def finish(work: Any) -> None:
        assert (work is not None) == async_op
        if work is not None:
            work.wait()

    own = torch.full((rank, 2), float(rank))
    outs = [torch.empty(peer, 2) for peer in range(size)]
    finish(dist.all_gather(outs, own, async_op=async_op))
    assert all(torch.equal(o, torch.full((p, 2), float(p))) for p, o in enumerate(outs))

    # One element without a dimension, received into one with.
    outs = [torch.empty(1) for _ in range(size)]
    finish(dist.all_gather(outs, torch.tensor(float(rank)), async_op=async_op))
    assert [o.item() for o in outs] == list(range(size))

    sent = [torch.full((rank + peer,), 10 * rank + peer) for peer in range(size)]
    outs = [torch.empty(rank + peer, dtype=torch.int64) for peer in range(size)]
    finish(dist.all_to_all(outs, sent, async_op=async_op))
    assert all(o.tolist() == [10 * p + rank] * (rank + p) for p, o in enumerate(outs))

    splits = [rank + peer for peer in range(size)]
    flat, out = torch.cat(sent), torch.empty(sum(splits), dtype=torch.int64)
    finish(dist.all_to_all_single(out, flat, splits, splits, async_op=async_op))
    assert torch.equal(out, torch.cat(outs))

    inputs = [torch.full((peer + 1,), float(rank)) for peer in range(size)]
    mine = torch.empty(rank + 1)
    finish(dist.reduce_scatter(mine, inputs, async_op=async_op))
    assert mine.tolist() == [sum(range(size))] * (rank + 1)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("nranks", SIZES)
def test_unequal_parts(any_world: World, provider: str, nranks: int, async_op: bool) -> None:
    gpu.spare(provider, nranks)
    any_world(nranks, _unequal, async_op)


def _in_place_lists(dist: Any, rank: int, size: int) -> None:
    """Results arrive in the very tensors that were passed: views of one buffer, and the input."""
    import torch

    buffer = torch.zeros(size, 3)
    buffer[rank] = rank
    before = buffer.data_ptr()
    dist.all_gather(list(buffer.unbind()), buffer[rank])
    assert buffer.data_ptr() == before
    assert torch.equal(buffer, torch.arange(size).repeat_interleave(3).reshape(size, 3).float())


def test_lists_are_used_in_place(any_world: World) -> None:
    any_world(3, _in_place_lists)


def _dtypes(dist: Any, rank: int, size: int) -> None:
    import torch

    op = dist.ReduceOp
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                  torch.float32, torch.float64, torch.uint32, torch.uint64):  # fmt: skip
        tensor = torch.full((5,), rank + 1).to(dtype)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size * (size + 1) / 2] * 5, dtype
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.full((4,), float(rank)).to(dtype)
        dist.broadcast(tensor, 1)
        assert tensor.float().tolist() == [1.0] * 4
        tensor = torch.ones(4).to(dtype)
        dist.all_reduce(tensor)
        assert tensor.float().tolist() == [float(size)] * 4
    for dtype, name in ((torch.int16, "int16"), (torch.float8_e4m3fnuz, "float8_e4m3fnuz")):
        with pytest.raises(ValueError, match=rf"{name}.* expected one of int8, uint8, int32"):
            dist.all_reduce(torch.ones(2).to(dtype))

    truth = torch.tensor([rank == 0, True, False])
    for operator, expected in (
        (op.SUM, [True, True, False]),
        (op.MAX, [True, True, False]),
        (op.PRODUCT, [False, True, False]),
        (op.MIN, [False, True, False]),
    ):
        tensor = truth.clone()
        dist.all_reduce(tensor, operator)
        assert tensor.tolist() == expected, operator
    with pytest.raises(TypeError, match="AVG with Boolean"):
        dist.all_reduce(truth, op.AVG)

    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.full((3,), complex(1, rank), dtype=dtype)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [complex(size, size * (size - 1) / 2)] * 3
        outs = [torch.empty(3, dtype=dtype) for _ in range(size)]
        dist.all_gather(outs, torch.full((3,), complex(0, rank), dtype=dtype))
        assert [o[0].item() for o in outs] == [complex(0, peer) for peer in range(size)]
        # The real type of the parts goes with it.
        flat = torch.empty(size, 3, 2, dtype=dtype.to_real())
        dist.all_gather_single(flat, torch.full((3,), complex(0, rank), dtype=dtype))
        assert flat[1].tolist() == [[0.0, 1.0]] * 3
        for operator in (op.PRODUCT, op.MAX, op.MIN):
            with pytest.raises(ValueError, match="on complex"):
                dist.all_reduce(tensor, operator)
            with pytest.raises(ValueError, match="not defined on complex"):
                dist.reduce(tensor, 0, operator)
    dist.barrier()


@pytest.mark.parametrize("nranks", [2, 3])
def test_dtypes(world: World, nranks: int) -> None:
    world(nranks, _dtypes)


def _operators(dist: Any, rank: int, size: int) -> None:
    import torch

    op = dist.ReduceOp
    for operator, expected in ((op.AVG, (size + 1) / 2), (op.MAX, size), (op.MIN, 1)):
        for given in (operator, op(operator)):
            tensor = torch.full((3,), float(rank + 1))
            dist.all_reduce(tensor, given)
            assert tensor.tolist() == [expected] * 3
    for bitwise in (op.BAND, op.BOR, op.BXOR):
        with pytest.raises(ValueError, match=r"Cannot use ReduceOp\.B.* with NCCL"):
            dist.all_reduce(torch.ones(1), bitwise)
    with pytest.raises(ValueError, match="op: 'summ' is not one of 'sum', 'avg', 'max'"):
        dist.all_reduce(torch.ones(1), "summ")
    with pytest.raises(TypeError, match="op: expected a ReduceOp, a RedOp or a str, got 7"):
        dist.all_reduce(torch.ones(1), 7)
    with pytest.raises(ValueError, match="needs a factor"):
        dist.all_reduce(torch.ones(1), op.PREMUL_SUM)

    scaled = dist._make_nccl_premul_sum(0.5)
    for async_op in (False, True, False):
        tensor = torch.full((3,), float(rank + 1))
        work = dist.all_reduce(tensor, scaled, async_op=async_op)
        assert work is None or work.wait()
        assert tensor.tolist() == [size * (size + 1) / 4] * 3
    # Each rank's own weight, as a number and as a tensor.
    weights = torch.tensor([rank + 1.0])
    for factor in (float(rank + 1), weights):
        tensor = torch.ones(2)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), async_op=True).wait()
        assert tensor.tolist() == [size * (size + 1) / 2] * 2
    out = torch.empty(2)
    dist.reduce_scatter_single(out, torch.ones(2 * size), dist._make_nccl_premul_sum(2.0))
    assert out.tolist() == [2.0 * size] * 2


@pytest.mark.parametrize("nranks", SIZES)
def test_operators(world: World, nranks: int) -> None:
    world(nranks, _operators)


def _refused(dist: Any, rank: int, size: int) -> None:
    """All ranks make the same mistakes; the group works on after each."""
    import torch

    one = torch.ones(2)
    wrong_list = [one] * (size + 1)
    turned = torch.ones(4, size).t()
    for error, message, call in (
        (TypeError, "`tensor` of type torch.Tensor", lambda: dist.all_reduce([1.0])),
        (TypeError, "List\\[torch.Tensor\\]", lambda: dist.all_gather(one, one)),
        (TypeError, "with elements of type", lambda: dist.all_gather([1] * size, one)),
        (ValueError, "contiguous", lambda: dist.all_reduce(turned)),
        (ValueError, "contiguous", lambda: dist.broadcast(turned, 0, async_op=True)),
        (ValueError, "contiguous", lambda: dist.all_to_all_single(turned, turned, [1] * size)),
        (RuntimeError, "No backend type associated with device type meta",
         lambda: dist.all_reduce(torch.ones(1, device="meta"))),
        (ValueError, "one for each of the", lambda: dist.all_gather(wrong_list, one)),
        (RuntimeError, "one for each of the", lambda: dist.all_to_all(wrong_list, [one] * size)),
        (ValueError, "must be same size",
         lambda: dist.scatter(one, [torch.ones(3)] * size if rank == 0 else None)),
        (ValueError, "different dtypes", lambda: dist.all_gather([one.int()] * size, one)),
        (TypeError, "same type as input", lambda: dist.all_gather_single(one.int(), one)),
        (ValueError, "must have", lambda: dist.all_gather_single(torch.ones(3), one)),
        (ValueError, "must have", lambda: dist.reduce_scatter_single(torch.ones(2), torch.ones(3))),
        (RuntimeError, "divide equally",
         lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1))),
        (RuntimeError, "Split sizes doesn't match",
         lambda: dist.all_to_all_single(one, one, [3] * size, [3] * size)),
        (RuntimeError, "Number of tensor splits", lambda: dist.all_to_all_single(one, one, [2])),
    ):  # fmt: skip
        if "same size" in message and rank:
            continue
        with pytest.raises(error, match=message):
            call()
    for call in (
        lambda: dist.gather(one, dst=rank),
        lambda: dist.scatter(one, src=rank),
        lambda: dist.gather(one, [one] * size, dst=(rank + 1) % size),
        lambda: dist.scatter(one, [one] * size, src=(rank + 1) % size),
    ):
        with pytest.raises(ValueError, match="must"):
            call()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3


@pytest.mark.parametrize("nranks", [2, 3])
def test_mistakes_are_refused_and_the_group_works_on(world: World, nranks: int) -> None:
    world(nranks, _refused)


def _coalesced(dist: Any, rank: int, size: int, async_ops: bool) -> None:
    import torch

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
            dist.all_gather_single(out, torch.full((n,), float(rank)))
    manager.wait()
    assert outs[1].tolist() == [float(peer) for peer in range(size) for _ in range(2)]

    outs = [torch.empty(n) for n in (1, 2)]
    with dist._coalescing_manager(async_ops=async_ops) as manager:
        for n, out in zip((1, 2), outs, strict=True):
            dist.reduce_scatter_single(out, torch.ones(n * size))
    manager.wait()
    assert outs[1].tolist() == [float(size)] * 2

    # With a device every operation is taken, of all kinds.
    tensor, received = torch.ones(2), torch.empty(1)
    with dist._coalescing_manager(device=tensor.device, async_ops=async_ops) as manager:
        dist.all_reduce(tensor)
        dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    manager.wait()
    assert (tensor[0], received.item()) == (size, (rank - 1) % size)

    mixed = pytest.raises(RuntimeError, match="all collectives to be the same type")
    with mixed, dist._coalescing_manager():
        dist.all_reduce(tensor)
        dist.reduce_scatter_single(outs[0], torch.ones(size))
    with pytest.raises(KeyError), dist._coalescing_manager():
        dist.all_reduce(tensor)
        raise KeyError
    dist.barrier()


@pytest.mark.parametrize("async_ops", [False, True])
def test_coalescing(any_world: World, async_ops: bool) -> None:
    any_world(3, _coalesced, async_ops)


def _deprecated(dist: Any, rank: int, size: int) -> None:
    import torch

    out, own = torch.empty(size), torch.tensor([float(rank)])
    for call in (
        lambda: dist.all_gather_into_tensor(out, own),
        lambda: dist._all_gather_base(out, own),
        lambda: dist.reduce_scatter_tensor(own, out),
        lambda: dist._reduce_scatter_base(own, out),
        lambda: dist.all_reduce_coalesced([out]),
        lambda: dist.all_gather_coalesced([[own.clone()] for _ in range(size)], [own]),
    ):
        with pytest.warns(FutureWarning, match="deprecated"):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = torch.full((2,), float(rank)), torch.full((1, 3), 10.0 * rank)
        lists = [[torch.empty(2), torch.empty(1, 3)] for _ in range(size)]
        future = dist.all_gather_coalesced(lists, [first, second], async_op=True)
        future.wait()
        assert [l[1][0, 0].item() for l in lists] == [10.0 * peer for peer in range(size)]  # noqa: E741
        future = dist.all_reduce_coalesced([first, second], async_op=True)
        assert len(future.wait()) == 2
        assert first[0] == sum(range(size))


def test_deprecated_names(world: World) -> None:
    world(2, _deprecated)


def _objects(dist: Any, rank: int, size: int) -> None:
    import torch

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


@pytest.mark.parametrize("nranks", SIZES)
def test_objects(any_world: World, provider: str, nranks: int) -> None:
    gpu.spare(provider, nranks)
    any_world(nranks, _objects)


def _methods(dist: Any, rank: int, size: int) -> None:
    """What code calls on the group itself."""
    import torch

    pg = dist.group.WORLD
    tensor = torch.ones(2)
    pg.allreduce([tensor]).wait()
    pg.allreduce(tensor, dist.ReduceOp.MAX).wait()
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    pg.allreduce([tensor], options).wait()
    assert tensor.tolist() == [size * size] * 2
    pg.broadcast(torch.ones(1), root=1).wait()
    pg.reduce(torch.ones(1), root=1).wait()
    outs = [torch.empty(1) for _ in range(size)]
    pg.allgather([outs], [torch.tensor([float(rank)])]).wait()
    assert [o.item() for o in outs] == list(range(size))
    pg.gather([outs] if rank == 0 else [], [torch.ones(1)], 0).wait()
    pg.scatter([torch.ones(1)], [outs] if rank == 0 else [], 0).wait()
    pg.reduce_scatter([torch.ones(1)], [outs]).wait()
    flat = torch.empty(size)
    pg.all_gather_single(flat, torch.ones(1)).wait()
    pg.reduce_scatter_single(torch.ones(1), flat).wait()
    pg.alltoall([torch.empty(1) for _ in range(size)], outs).wait()
    pg.all_to_all_single(torch.empty(size), flat).wait()
    work = pg.send([tensor], 1) if rank == 0 else pg.recv([tensor], 0) if rank == 1 else None
    assert work is None or work.wait()
    pg.barrier().wait()
    pg.monitored_barrier()


def test_methods_of_the_group(world: World) -> None:
    world(2, _methods)
    world(3, _methods)
