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
from tests.compat.test_vllm import TORCH, check_parts, full, gloo


@on_ranks(3, env=TORCH)
def test_operations(rank: Rank) -> None:
    r, n = rank.rank, rank.nranks
    total = sum(range(1, n + 1))
    with gloo(rank):
        comm = PyNcclCommunicator(torch.distributed.group.WORLD, "cpu", None, True, 0)
        x = full(comm, 4, r + 1)
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
            check_parts(comm, r, n, comm.all_gather, comm.reduce_scatter)
            exchanged = torch.empty(n, 2)
            comm.all_to_all_single(exchanged, torch.full((n, 2), float(r)))
            assert exchanged[:, 0].tolist() == list(range(n))
            with comm.change_state(enable=False):
                assert comm.disabled
            assert not comm.disabled
        assert comm.disabled
        comm.destroy()
        assert not comm.available


@on_ranks(2, env={**TORCH, "VLLM_DISABLE_PYNCCL": "1"})
def test_vllms_switch_is_ignored(rank: Rank) -> None:
    with gloo(rank):
        assert PyNcclCommunicator(torch.distributed.group.WORLD, "cpu").available
