"""Proves that the mirror rejects lazily conjugated and negated tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.ranks import on_ranks


@on_ranks(2)
def test_lazy_tensors_are_rejected(dist: Any, rank: int, size: int) -> None:
    other = 1 - rank
    for tensor in (torch.ones(2)._neg_view(), torch.tensor([1 + 2j, 3j]).conj()):
        text = "conjugat" if tensor.is_complex() else "^tensor: is lazily negated"
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
