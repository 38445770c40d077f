"""Proves that collectives on overlapping tensors are rejected if NCCL leaves them undefined, and
correct otherwise, over the mirror and over the backend.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as torch_dist

from tests.support.ranks import on_ranks

Calls = Iterator[tuple[str, str, Callable[..., Any]]]


def _undefined(dist: Any, rank: int) -> Calls:
    """The argument named in the error, and a call that both of two ranks reject."""
    x, y = torch.zeros(8), torch.zeros(2)
    halves, other = list(x[:4].chunk(2)), 1 - rank
    shifted = [x[:2], x[1:3]]
    yield "one tensor in a list", "tensor_list", lambda **a: dist.all_gather([y, y], x[:2], **a)
    yield "entries", "tensor_list", lambda **a: dist.all_gather(shifted, y, **a)
    yield "entry of another", "tensor_list", lambda **a: dist.all_gather(halves, halves[other], **a)
    yield "own entry", "tensor_list", lambda **a: dist.all_gather(halves, x[1:3], **a)
    yield "shifted", "output_tensor", lambda **a: dist.all_gather_into_tensor(x[:4], x[1:3], **a)
    yield (
        "block of another",
        "output_tensor",
        lambda **a: dist.all_gather_into_tensor(x[:4], halves[other], **a),
    )
    yield "input of another", "output", lambda **a: dist.reduce_scatter(halves[other], halves, **a)
    yield "both inputs", "output", lambda **a: dist.reduce_scatter(x[1:3], halves, **a)
    yield "shifted", "output", lambda **a: dist.reduce_scatter_tensor(x[1:3], x[:4], **a)
    yield "in place", "output_tensor_list", lambda **a: dist.all_to_all(halves, halves, **a)
    yield (
        "outputs",
        "output_tensor_list",
        lambda **a: dist.all_to_all(shifted, [y, y.clone()], **a),
    )
    yield "in place", "output", lambda **a: dist.all_to_all_single(x[:4], x[:4], **a)
    yield "shifted", "output", lambda **a: dist.all_to_all_single(x[2:6], x[:4], **a)
    splits = [[3, 1], [1, 3]][rank]
    yield (
        "uneven",
        "output",
        lambda **a: dist.all_to_all_single(x[:4], x[:4], splits, splits, **a),
    )
    if dist is torch_dist:
        yield "shifted", "tensors", lambda **a: dist.all_reduce_coalesced([x[:3], x[2:5]], **a)
        yield "twice", "tensors", lambda **a: dist.all_reduce_coalesced([x, y, x], **a)


def _undefined_at_root(dist: Any) -> Calls:
    """The argument named in the error, and a call that only rank 0 rejects."""
    x, y = torch.zeros(8), torch.zeros(2)
    halves, shifted = list(x[:4].chunk(2)), [x[:2], x[1:3]]
    yield "entry of another", "tensor", lambda **a: dist.scatter(halves[1], halves, src=0, **a)
    yield "both entries", "tensor", lambda **a: dist.scatter(x[1:3], halves, src=0, **a)
    yield "entry of another", "gather_list", lambda **a: dist.gather(halves[1], halves, dst=0, **a)
    yield "entries", "gather_list", lambda **a: dist.gather(y, shifted, dst=0, **a)


def _batches(dist: Any, rank: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Several calls in one group."""
    x = torch.zeros(8)

    def messages(*ranges: tuple[str, slice]) -> Any:
        return dist.batch_isend_irecv(
            [dist.P2POp(getattr(dist, op), x[part], 1 - rank) for op, part in ranges]
        )

    def coalesced() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(x[:4])
            dist.all_reduce(x[3:])

    left, right = slice(0, 4), slice(3, 8)
    yield "both", lambda: messages(("isend", left), ("irecv", left))
    yield "shifted", lambda: messages(("isend", left), ("irecv", right))
    yield "outputs", lambda: messages(("irecv", left), ("irecv", right))
    if dist is torch_dist:
        yield "coalesced", coalesced


def _defined(dist: Any, rank: int) -> Iterator[Callable[[bool], Any]]:
    """Functions that run a call on shared or separate memory and return the output."""

    def make() -> Any:
        return torch.arange(1.0, 9.0) * (rank + 1)

    def copy(tensor: Any, apart: bool) -> Any:
        return tensor.clone() if apart else tensor

    def all_gather(apart: bool) -> Any:
        parts = list(make().chunk(2))
        dist.all_gather(parts, copy(parts[rank], apart))
        return parts

    def all_gather_into_tensor(apart: bool) -> Any:
        x = make()
        dist.all_gather_into_tensor(x, copy(x.chunk(2)[rank], apart))
        return x

    def reduce_scatter(apart: bool) -> Any:
        parts = list(make().chunk(2))
        out = copy(parts[rank], apart)
        dist.reduce_scatter(out, parts)
        return out

    def reduce_scatter_tensor(apart: bool) -> Any:
        x = make()
        out = copy(x.chunk(2)[rank], apart)
        dist.reduce_scatter_tensor(out, x)
        return out

    def inputs(apart: bool) -> Any:
        x, out, outs = make(), torch.zeros(8), [torch.zeros(8), torch.zeros(8)]
        dist.reduce_scatter(out, [x, copy(x, apart)])
        dist.all_to_all(outs, [x, copy(x, apart)])
        return [out, *outs]

    def own_message(apart: bool) -> Any:
        parts = list(make().chunk(2))
        outs = [torch.zeros(4), torch.zeros(4)]
        outs[rank] = copy(parts[rank], apart)
        dist.all_to_all(outs, parts)
        return outs

    def scatter(apart: bool) -> Any:
        parts = list(make().chunk(2))
        out = copy(parts[0], apart)
        dist.scatter(out, parts if rank == 0 else None, src=0)
        return out

    def gather(apart: bool) -> Any:
        parts = list(make().chunk(2))
        dist.gather(copy(parts[rank], apart), parts if rank == 0 else None, dst=0)
        return parts

    def neighbours(apart: bool) -> Any:
        x = make()
        parts = [copy(x[:3], apart), x[3:3], copy(x[3:], apart)]
        dist.all_reduce_coalesced(parts)
        return parts

    def empty(apart: bool) -> Any:
        x = make()
        dist.all_to_all_single(x[:0], copy(x[:0], apart))
        dist.all_gather([x[:0], x[:0]], x[:0])
        out = copy(x[4:], apart) if rank else x[:0]  # rank 1 receives from both
        splits = [2, 2] if rank else [0, 0]
        dist.all_to_all_single(out, x[:2], splits, [0, 2])
        return [x[:4], out]

    yield from (all_gather, all_gather_into_tensor, reduce_scatter, reduce_scatter_tensor)
    yield from (inputs, own_message, scatter, gather, empty)
    if dist is torch_dist:
        yield neighbours


def _refusal(call: Callable[..., Any], **options: Any) -> str:
    """The text of the ValueError raised by a call, or an empty string."""
    try:
        call(**options)
    except ValueError as error:
        return str(error)
    return ""


@on_ranks(2, fixture="each_world")
def test_overlaps_are_rejected(dist: Any, rank: int, size: int) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # deprecated function names
    calls = [*_undefined(dist, rank), *(_undefined_at_root(dist) if rank == 0 else ())]
    for name, argument, call in calls:
        for async_op in (False, True):
            text = _refusal(call, async_op=async_op)
            assert re.match(f"{argument}:.*(overlap|in place)", text), (name, text)
    for name, batch in _batches(dist, rank):
        assert "overlap" in _refusal(batch), name
    for function in _defined(dist, rank):
        together, apart = function(False), function(True)
        if isinstance(together, list):
            together, apart = torch.cat(together), torch.cat(apart)
        assert torch.equal(together, apart), (function, together, apart)
    dist.barrier()
