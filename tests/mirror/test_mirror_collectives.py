"""Proves behavior of the mirror's collectives only: every dtype and operator, methods of the group,
and rejection of mistakes before anything is sent. tests/c10d has the tests shared with the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.ranks import on_ranks

SIZES = (2, 3, 4)


@on_ranks(2, 3)
def test_dtypes(dist: Any, rank: int, size: int) -> None:
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
            with pytest.raises(ValueError, match="not defined on complex"):
                dist.reduce(tensor, 0, operator)
    dist.barrier()


@on_ranks(*SIZES)
def test_operators(dist: Any, rank: int, size: int) -> None:
    op = dist.ReduceOp
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


@on_ranks(2, 3)
def test_mistakes_leave_the_group_usable(dist: Any, rank: int, size: int) -> None:
    """All ranks make the same mistakes; the group stays usable after each."""
    one = torch.ones(2)
    wrong_list = [one] * (size + 1)
    turned = torch.ones(4, size).t()
    torch_group = torch.distributed.ProcessGroup(rank, size)
    for error, message, call in (
        (TypeError, "`tensor` of type torch.Tensor", lambda: dist.all_reduce([1.0])),
        (TypeError, "List\\[torch.Tensor\\]", lambda: dist.all_gather(one, one)),
        (TypeError, "with elements of type", lambda: dist.all_gather([1] * size, one)),
        (ValueError, "contiguous", lambda: dist.all_reduce(turned)),
        (ValueError, "contiguous", lambda: dist.all_reduce(torch.ones(4)[::2])),
        (ValueError, "contiguous", lambda: dist.broadcast(turned, 0, async_op=True)),
        (ValueError, "contiguous", lambda: dist.all_to_all_single(turned, turned, [1] * size)),
        (RuntimeError, "No backend type associated with device type meta",
         lambda: dist.all_reduce(torch.ones(1, device="meta"))),
        (ValueError, "tensor: expected a dense tensor", lambda: dist.all_reduce(one.to_sparse())),
        (ValueError, "Group \\[0, 1\\] is not regist", lambda: dist.all_reduce(one, group=[0, 1])),
        (ValueError, "is not registered", lambda: dist.all_gather([one] * size, one, torch_group)),
        (ValueError, "one for each of the", lambda: dist.all_gather(wrong_list, one)),
        (TypeError, "output_tensor_list.*List", lambda: dist.all_to_all(one, [one] * size)),
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
        (ValueError, "src: rank 9 is out of range", lambda: dist.broadcast(one, 9)),
        (ValueError, "Can't specify both", lambda: dist.broadcast(one, 0, group_src=0)),
        (ValueError, "Must specify", lambda: dist.reduce(one)),
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


@on_ranks(2)
def test_deprecated_names(dist: Any, rank: int, size: int) -> None:
    out, own = torch.empty(size), torch.tensor([float(rank)])
    with pytest.warns(FutureWarning, match="deprecated"):
        dist.all_gather_into_tensor(out, own)
    with pytest.warns(FutureWarning, match="deprecated"):
        dist.reduce_scatter_tensor(own, out)
    assert own.item() == size * rank


@on_ranks(2)
def test_methods_of_the_group(dist: Any, rank: int, size: int) -> None:
    pg = dist.group.WORLD
    pg.monitored_barrier()
    if rank == 0:
        pg.get_group_store().set("name", "value")
    assert pg.get_group_store().get("name") == b"value"


@on_ranks(2)
def test_lazy_tensors_are_rejected(dist: Any, rank: int, size: int) -> None:
    other = 1 - rank
    for tensor in (torch.ones(2)._neg_view(), torch.tensor([1 + 2j, 3j]).conj()):
        text = (
            "conjugat" if tensor.is_complex() else r"^(tensor|p2p_op_list\[0\]): is lazily negated"
        )
        plain = torch.zeros_like(tensor.resolve_conj().resolve_neg())
        calls: tuple[Callable[[], object], ...] = (
            lambda t=tensor: dist.broadcast(t, 0),
            lambda t=tensor: dist.all_reduce(t),
            lambda t=tensor: dist.all_reduce(t, async_op=True),
            lambda t=tensor: dist.send(t, other),
            lambda t=tensor: dist.isend(t, other),
            lambda t=tensor: dist.batch_isend_irecv([dist.P2POp(dist.isend, t, other)]),
        )
        for call in calls:
            # torch itself cannot view a conjugated tensor as pairs of reals.
            with pytest.raises((ValueError, RuntimeError), match=text):
                call()
        # Copied into one buffer by torch, which resolves them.
        gathered = [torch.empty_like(plain) for _ in range(2)]
        if not tensor.is_complex():
            dist.all_gather(gathered, tensor.resolve_neg())
            assert all(torch.equal(part, tensor) for part in gathered)
    plain = torch.ones(2)
    dist.all_reduce(plain)
    assert plain.tolist() == [2, 2]
