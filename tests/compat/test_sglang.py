"""Proves that our PyNcclCommunicator for SGLang returns the results of SGLang's, on CPU tensors.

tests/integrations/check_sglang.py compares it with SGLang's class.
"""

from __future__ import annotations

import pytest

from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytest.importorskip("torch")

import torch

from pynccl.compat.sglang import PyNcclCommunicator  # needs torch
from tests.compat.test_vllm import _TORCH, _full, _gloo


@on_ranks(3, env=_TORCH)
def test_operations(rank: Rank) -> None:
    r, n = rank.rank, rank.nranks
    total = sum(range(1, n + 1))
    with _gloo(rank):
        comm = PyNcclCommunicator(torch.distributed.group.WORLD, "cpu", None, True, 0)
        x = _full(comm, 4, r + 1)
        comm.all_reduce(x)
        assert comm.outplace_all_reduce(x) is None
        assert x.tolist() == [r + 1] * 4  # disabled
        with comm.change_state():
            assert comm.outplace_all_reduce(x).tolist() == [total] * 4
            assert x.tolist() == [r + 1] * 4
            comm.all_reduce(x)
            assert x.tolist() == [total] * 4
            comm.all_reduce(x, torch.distributed.ReduceOp.MAX)
            assert x.tolist() == [total] * 4
            _check_parts(comm, r, n)
            with comm.change_state(enable=False):
                assert comm.disabled
            assert not comm.disabled
        assert comm.disabled
        comm.destroy()
        assert not comm.available


def _check_parts(comm: PyNcclCommunicator, r: int, n: int) -> None:
    gathered, part = _full(comm, 2 * n, 0), _full(comm, 2, 0)
    comm.all_gather(gathered, _full(comm, 2, r))
    assert gathered.tolist() == [i // 2 for i in range(2 * n)]
    comm.reduce_scatter(part, torch.arange(2.0 * n))
    assert part.tolist() == [n * (2 * r), n * (2 * r + 1)]
    sizes = list(range(n))  # the first rank has nothing
    rows = torch.zeros(sum(sizes), 3)
    comm.all_gather(rows, torch.full((r, 3), float(r)), sizes=sizes)
    assert rows[:, 0].tolist() == [i for i in sizes for _ in range(i)]
    part = torch.zeros(r, 3)
    comm.reduce_scatter(part, torch.ones(sum(sizes), 3), sizes=sizes)
    assert part.tolist() == [[n] * 3] * r
    exchanged = torch.empty(n, 2)
    comm.all_to_all_single(exchanged, torch.full((n, 2), float(r)))
    assert exchanged[:, 0].tolist() == list(range(n))


@on_ranks(2, env={**_TORCH, "VLLM_DISABLE_PYNCCL": "1"})
def test_vllms_switch_is_ignored(rank: Rank) -> None:
    with _gloo(rank):
        assert PyNcclCommunicator(torch.distributed.group.WORLD, "cpu").available
