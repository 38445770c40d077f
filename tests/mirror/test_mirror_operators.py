"""Proves that all functions and methods of the mirror accept an operator as torch's ReduceOp, as a
RedOp and as a str, with the same result, and take the fast path with each.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.calls import python_calls
from tests.support.ranks import on_ranks


def _forms(dist: Any) -> dict[str, list[Any]]:
    from pynccl import nccl

    op = dist.ReduceOp
    return {
        "sum": [op.SUM, op(op.SUM), nccl.SUM, "sum"],
        "avg": [op.AVG, op(op.AVG), nccl.AVG, "avg"],
        "max": [op.MAX, op(op.MAX), nccl.MAX, "max"],
        "min": [op.MIN, op(op.MIN), nccl.MIN, "min"],
        "prod": [op.PRODUCT, op(op.PRODUCT), nccl.PROD, "prod", "product"],
    }


@on_ranks(2, 3, fixture="any_world")
def test_functions(dist: Any, rank: int, size: int) -> None:
    def mine() -> torch.Tensor:
        return torch.full((size,), 2 * rank + 2, dtype=torch.int32)

    values = torch.arange(1, size + 1, dtype=torch.int32) * 2
    expected = {
        "sum": values.sum(),
        "avg": values.sum() // size,
        "max": values.max(),
        "min": values.min(),
        "prod": values.prod(),
    }
    for name, forms in _forms(dist).items():
        want = [int(expected[name])] * size
        for op in forms:
            tensors = [mine() for _ in range(3)]
            dist.all_reduce(tensors[0], op)
            dist.all_reduce(tensors[1], op=op, async_op=True).wait()
            dist.reduce(tensors[2], 0, op)
            for tensor in tensors[: None if rank == 0 else 2]:
                assert tensor.tolist() == want, (name, op)
            parts = [torch.zeros(1, dtype=torch.int32) for _ in range(2)]
            dist.reduce_scatter_single(parts[0], mine(), op)
            dist.reduce_scatter(parts[1], list(mine().split(1)), op)
            assert [part.tolist() for part in parts] == [want[:1]] * 2, (name, op)


@on_ranks(2)
def test_booleans_and_complex_numbers(dist: Any, rank: int, size: int) -> None:
    for name, forms in _forms(dist).items():
        for op in forms:
            flags = torch.tensor([rank == 0, rank >= 0])
            numbers = torch.full((2,), complex(rank + 1, 1))
            if name == "avg":
                with pytest.raises(TypeError, match="AVG with Boolean inputs"):
                    dist.all_reduce(flags, op)
            else:
                dist.all_reduce(flags, op)
                either = name in ("sum", "max") or size == 1
                assert flags.tolist() == [either, True], op
            if name in ("sum", "avg"):
                dist.all_reduce(numbers, op)
                assert numbers.sum().imag == (2 if name == "avg" else 2 * size)
            else:
                with pytest.raises(ValueError, match=r"all_reduce does not support .* on complex"):
                    dist.all_reduce(numbers, op)


@on_ranks(1)
def test_the_fast_path(dist: Any, rank: int, size: int) -> None:
    tensor = torch.ones(4)
    for forms in _forms(dist).values():
        for op in forms:
            if type(op) is dist.ReduceOp:
                continue  # an object that Python's function must read
            with python_calls() as calls:
                dist.all_reduce(tensor, op)
                dist.reduce(tensor, 0, op)
            assert not {"all_reduce", "reduce"} & calls.keys(), op
    made = "".join(["su", "m"])  # not interned: Python's function reads it
    with python_calls() as calls:
        dist.all_reduce(tensor, made)
    assert calls["all_reduce"] == 1


@on_ranks(2)
def test_operators_of_a_factor(dist: Any, rank: int, size: int) -> None:
    from pynccl import nccl

    own = dist.get_backend_impl().pre_mul_sum(0.5, "float32")
    for async_op in (False, True):
        tensor = torch.full((3,), float(size))
        work = dist.all_reduce(tensor, own, async_op=async_op)
        assert work is None or work.wait()
        assert tensor.tolist() == [size * size / 2] * 3
    with nccl.Communicator.init_all(1, provider="host")[0] as other:
        foreign = other.pre_mul_sum(0.5, "float32")
        with pytest.raises(ValueError, match="belongs to another communicator"):
            dist.all_reduce(torch.ones(3), foreign)
        with pytest.raises(ValueError, match="is for float32, the tensor is float64"):
            dist.all_reduce(torch.ones(3, dtype=torch.float64), own)
