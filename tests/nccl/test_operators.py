"""Proves that a RedOp, a str and a value of torch's ReduceOp give the same result in every reducing
method, alone, in a group and in a plan, and that torch is not required.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_NAMES = {
    "sum": nccl.SUM,
    "avg": nccl.AVG,
    "max": nccl.MAX,
    "min": nccl.MIN,
    "prod": nccl.PROD,
    "product": nccl.PROD,
}
_OF_TORCH = {"product": "PRODUCT", "prod": "PRODUCT"}


def _expected(name: str, nranks: int) -> int:
    values = np.arange(1, nranks + 1) * 2
    if name == "avg":
        return int(values.sum()) // nranks
    numpy_name = {"avg": "mean", "product": "prod"}.get(name, name)
    return int(getattr(values, numpy_name)())


def _forms(name: str, with_torch: bool) -> list[Any]:
    """All forms of one operator, including a str that is not interned."""
    assert sys.intern(name) is name
    made = "".join(list(name))
    assert made is not name
    forms: list[Any] = [name, made, _NAMES[name]]
    if with_torch:
        from torch.distributed import ReduceOp

        bare = getattr(ReduceOp, _OF_TORCH.get(name, name.upper()))
        forms += [bare, ReduceOp(bare)]
    return forms


def _reduce_in_all_forms(rank: Rank, with_torch: bool) -> int:
    comm, memory, nranks, count = rank.comm, rank.memory, rank.nranks, 0
    mine = np.full(nranks, 2 * (rank.rank + 1), np.int32)
    for name in _NAMES:
        want = _expected(name, nranks)
        for op in _forms(name, with_torch):
            a, b, c, d, e = (memory.put(mine) for _ in range(5))
            part = memory.put(mine[:1])
            comm.all_reduce(a, op)
            comm.reduce(b, 0, op)
            comm.reduce_scatter(c, op=op, out=part)
            with nccl.group():
                comm.all_reduce(d, op)
            with nccl.plan() as plan:
                comm.all_reduce(e, op)
            plan()
            for got in (a, d, e, *([b] if rank.rank == 0 else [])):
                assert memory.get(got).tolist() == [want] * nranks, (name, op)
            assert memory.get(part).tolist() == [want], (name, op)
            count += 1
    assert with_torch or "torch" not in sys.modules
    return count


def test_without_torch(launch: Launcher) -> None:
    assert launch(3, _reduce_in_all_forms, False, fresh=True) == [3 * len(_NAMES)] * 3


def test_with_torch(launch: Launcher, provider: str) -> None:
    pytest.importorskip("torch")
    counts = launch(2, _reduce_in_all_forms, True, provider=provider)
    assert counts == [5 * len(_NAMES)] * 2


def _torchs_other_operators(rank: Rank) -> None:
    from torch._C._distributed_c10d import _make_nccl_premul_sum
    from torch.distributed import ReduceOp

    comm, array = rank.comm, np.ones(4, np.float32)
    for bitwise in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp(ReduceOp.BXOR)):
        with pytest.raises(
            ValueError, match=r"op: <RedOpType\.B\w+: \d> is not an operator of NCCL"
        ):
            comm.all_reduce(array, bitwise)
    for factor in (ReduceOp.PREMUL_SUM, _make_nccl_premul_sum(2.0)):
        with pytest.raises(ValueError, match=r"create one with Communicator\.pre_mul_sum\(\)"):
            comm.all_reduce(array, factor)
    with pytest.raises(ValueError, match="op: MAX is not defined on complex64"):
        comm.all_reduce(np.ones(2, np.complex64), ReduceOp.MAX)
    comm.all_reduce(array, comm.pre_mul_sum(0.5, "float32"))
    assert array.tolist() == [rank.nranks / 2] * 4


def test_torchs_other_operators_are_refused(launch: Launcher) -> None:
    pytest.importorskip("torch")
    launch(2, _torchs_other_operators)
