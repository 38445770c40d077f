"""Proves that calls over the mirror and over the backend give bitwise the results of gloo.

Hypothesis draws programs of calls (operation, dtype, shape, operator, group, root, asynchronous or
not, by the mirror's function in C++ or by the Python function behind it). Every rank runs them with
both, in one process, and compares all written tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import pynccl
from tests.c10d.versions import VERSION
from tests.support.tier import FULL

World = Callable[..., list[Any]]

MOVES: tuple[str, ...] = (
    "broadcast",
    "all_gather",
    "all_gather_single",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "batch_isend_irecv",
    "isend",
)
if VERSION < (2, 13):
    # gloo has no all_to_all of lists on hosts; test_collectives.py tests ours.
    MOVES = tuple(name for name in MOVES if name != "all_to_all")
REDUCES = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
)
UNEVEN = ("all_to_all_single",)  # gloo has no uneven all_to_all
ROOTED = ("broadcast", "gather", "scatter", "reduce", "isend")
DTYPES = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
MOVED_DTYPES = (*DTYPES, "bool", "complex64")


def dtypes_of(name: str) -> tuple[str, ...]:
    """Dtypes that both support: gloo does not gather complex numbers."""
    if name in REDUCES:
        return DTYPES
    return MOVED_DTYPES[:-1] if name == "gather" else MOVED_DTYPES


@dataclass(frozen=True)
class Call:
    """One call, the same on every rank."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    operator: str
    subgroup: bool
    root: int  # modulo the group's size
    by_group_rank: bool
    async_op: bool
    behind: bool  # in the mirror, call the Python function behind one in C++
    uneven: bool
    seed: int


@st.composite
def calls(draw: st.DrawFn) -> Call:
    name = draw(st.sampled_from(MOVES + REDUCES))
    return Call(
        name,
        draw(st.sampled_from(dtypes_of(name))),
        tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))),
        draw(st.sampled_from(["SUM", "PRODUCT", "MIN", "MAX"])),
        draw(st.booleans()),
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        name in UNEVEN and draw(st.booleans()),
        draw(st.integers(0, 2**16)),
    )


def _make(call: Call, rank: int, shape: tuple[int, ...], salt: int = 0) -> Any:
    """A rank's data: small integers, whose sums and products are exact in every dtype."""
    generator = torch.Generator().manual_seed(call.seed * 100 + rank * 10 + salt)
    values = torch.randint(1, 4, shape, generator=generator, device="cpu")
    return values.to(torch.get_default_device(), getattr(torch, call.dtype))


_BEFORE_2_13 = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def _perform(dist: Any, call: Call, group: Any, rank: int, size: int) -> list[Any]:
    """Make the call and return all tensors that it may have written to."""

    def of(name: str) -> Any:
        function = getattr(dist, name, None) or getattr(dist, _BEFORE_2_13[name])
        in_cpp = isinstance(function, type(pynccl.all_reduce))
        return function.__wrapped__ if call.behind and in_cpp else function

    root = call.root % size
    is_root = rank == root
    own = _make(call, rank, call.shape)
    parts = [_make(call, rank, call.shape, 1 + peer) for peer in range(size)]
    outs = [torch.zeros_like(own) for _ in range(size)]
    operator = getattr(dist.ReduceOp, call.operator)
    options: dict[str, Any] = {"group": group, "async_op": call.async_op}
    if call.name in ROOTED:
        side = "src" if call.name in ("broadcast", "scatter") else "dst"
        if call.by_group_rank:
            options[f"group_{side}"] = root
        else:
            options[side] = dist.get_process_group_ranks(group)[root]
    rows = call.shape[0]
    match call.name:
        case "broadcast":
            work, written = of("broadcast")(own, **options), [own]
        case "all_reduce":
            work, written = of("all_reduce")(own, operator, **options), [own]
        case "reduce":
            work = of("reduce")(own, op=operator, **options)
            written = [own] if is_root else []
        case "all_gather":
            work, written = dist.all_gather(outs, own, **options), outs
        case "all_gather_single":
            flat = own.new_zeros((size * rows, *call.shape[1:]))
            work, written = of("all_gather_single")(flat, own, **options), [flat]
        case "gather":
            work, written = dist.gather(own, outs if is_root else None, **options), outs
        case "scatter":
            work, written = dist.scatter(own, parts if is_root else None, **options), [own]
        case "reduce_scatter":
            work, written = dist.reduce_scatter(own, parts, operator, **options), [own]
        case "reduce_scatter_single":
            flat = torch.cat(parts)
            work, written = of("reduce_scatter_single")(own, flat, operator, **options), [own]
        case "all_to_all" | "all_to_all_single":
            extra = [call.uneven * (rank + peer) % 3 for peer in range(size)]
            sent = [_make(call, rank, (rows + e, *call.shape[1:]), p) for p, e in enumerate(extra)]
            outs = [torch.zeros_like(part) for part in sent]
            if call.name == "all_to_all":
                work, written = dist.all_to_all(outs, sent, **options), outs
            else:
                out, splits = torch.cat(outs), [rows + e for e in extra]
                given = (splits, splits) if call.uneven else ()
                work = dist.all_to_all_single(out, torch.cat(sent), *given, **options)
                written = [out]
        case "batch_isend_irecv":
            ranks = dist.get_process_group_ranks(group)
            ops = [
                dist.P2POp(dist.irecv, outs[p], ranks[p], group) for p in range(size) if p != rank
            ]
            ops += [
                dist.P2POp(dist.isend, parts[p], group=group, group_peer=p)
                for p in range(size)
                if p != rank
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            return outs
        case "isend":
            del options["async_op"]
            if is_root:
                receive = of("irecv" if call.async_op else "recv")
                works = [
                    receive(outs[p], group=group, group_src=p) for p in range(size) if p != rank
                ]
            else:
                works = [of("isend" if call.async_op else "send")(own, **options)]
            for work in works if call.async_op else ():
                work.wait()
            return outs
    assert (work is not None) == call.async_op
    if work is not None:
        work.wait()
    return written  # type: ignore[no-any-return]


def compare_with_gloo(dist: Any, rank: int, size: int, url: str, program: list[Call]) -> None:
    import warnings

    warnings.simplefilter("ignore", FutureWarning)
    members = list(range(size))[-2:]
    if dist is torch_dist:  # over the backend
        theirs = [dist.new_group(ranks, backend="gloo") for ranks in (None, members)]
    else:
        torch_dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)
        theirs = [None, torch_dist.new_group(members)]
    ours = [None, dist.new_group(members)]
    device = torch.get_default_device()
    try:
        for call in program:
            if call.subgroup and rank not in members:
                continue
            own = ours[call.subgroup]
            place = dist.get_rank(own), dist.get_world_size(own)
            found = _perform(dist, call, own, *place)
            torch.set_default_device("cpu")
            expected = _perform(torch_dist, call, theirs[call.subgroup], *place)
            torch.set_default_device(device)
            for number, (mine, other) in enumerate(zip(found, expected, strict=True)):
                assert torch.equal(mine.cpu(), other), f"{call}, result {number}: {mine}, {other}"
    finally:
        if dist is not torch_dist:
            torch_dist.destroy_process_group()


@pytest.mark.parametrize("nranks", [2, 3, 4] if FULL else [3])
def test_same_values(host_world: World, tmp_path: Path, nranks: int) -> None:
    numbers = iter(range(10**6))

    @settings(
        max_examples=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],  # a failing program costs a world of processes
    )
    @given(st.lists(calls(), min_size=15, max_size=40))
    def run(program: list[Call]) -> None:
        host_world(nranks, compare_with_gloo, f"file://{tmp_path}/torch{next(numbers)}", program)

    run()


def every_call() -> list[Call]:
    """Each operation with every dtype, independent of the random programs."""
    program = []
    for name in MOVES + REDUCES:
        for number, dtype in enumerate(dtypes_of(name)):
            operator = ("SUM", "PRODUCT", "MIN", "MAX")[number % 4]
            flags = [bool(number & bit) for bit in (1, 2, 4)]
            behind = bool(sum(flags) % 2)
            uneven = name in UNEVEN and number % 3 == 0
            shape = (number, 3)
            subgroup, *others = flags
            program.append(
                Call(
                    name, dtype, shape, operator, subgroup, number, *others, behind, uneven, number
                )
            )
    return program


@pytest.mark.parametrize("nranks", [2, 4])
def test_every_call_once(each_world: World, tmp_path: Path, nranks: int) -> None:
    url = f"file://{tmp_path}/torch"
    each_world(nranks, compare_with_gloo, url, every_call(), timeout=120)
