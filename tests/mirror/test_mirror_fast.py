"""Proves that the fast functions in C++ behave like the Python functions behind them: the same
exceptions and names. They keep no references. tests/c10d/test_against_torch.py compares the results
of both.
"""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import pydoc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.support.blocking import in_threads
from tests.support.calls import python_calls
from tests.support.ranks import on_ranks
from tests.support.tier import FULL

pytest.importorskip("torch")

import pynccl

FAST = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather_single",
    "reduce_scatter_single",
    "isend",
    "irecv",
    "send",
    "recv",
    "batch_isend_irecv",
)


@pytest.mark.parametrize("name", FAST)
def test_introspection(name: str) -> None:
    function = getattr(pynccl, name)
    behind = function.__wrapped__
    assert inspect.isfunction(behind)
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        assert getattr(function, attribute) == getattr(behind, attribute)
    assert inspect.signature(function) == inspect.signature(behind)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    assert inspect.isroutine(function)
    page = pydoc.plain(pydoc.render_doc(function))
    assert f"{name}(" in page
    assert f"torch.distributed.{name}" in page
    assert repr(function) == f"<function pynccl.{name}>"
    # Found in the module itself, not by its __getattr__.
    assert vars(pynccl)[name] is function


def test_binding_to_instances() -> None:
    class Owner:
        reduce = pynccl.all_reduce

    owner = Owner()
    with pytest.raises(TypeError, match="Expected parameter `tensor`"):
        owner.reduce()
    assert Owner.reduce is pynccl.all_reduce


def _mistakes(dist: Any, torch: Any) -> dict[str, tuple[Any, ...]]:
    """Wrong calls, by what is wrong: the function, arguments, keywords."""
    good, strided = torch.ones(4), torch.ones(4, 4).t()
    quantity = torch.ones(4, dtype=torch.int16)
    cases: dict[str, tuple[Any, ...]] = {"nothing given": (dist.all_reduce, ())}
    for function in (dist.all_reduce, dist.broadcast, dist.reduce):
        name = function.__name__
        root = () if function is dist.all_reduce else (0,)
        cases |= {
            f"{name}: no tensor": (function, ([1.0], *root)),
            f"{name}: strided": (function, (strided, *root)),
            f"{name}: dtype": (function, (quantity, *root)),
            f"{name}: sparse": (function, (good.to_sparse(), *root)),
            f"{name}: device": (function, (good.to("meta"), *root)),
            f"{name}: group": (function, (good, *root), {"group": "all"}),
            f"{name}: keyword": (function, (good, *root), {"what": 1}),
            f"{name}: twice": (function, (good, *root), {"tensor": good}),
            f"{name}: too many": (function, (good, *range(9))),
        }
    for function in (dist.all_reduce, dist.reduce):
        given = {} if function is dist.all_reduce else {"dst": 0}
        cases |= {
            f"{function.__name__}: {op!r}": (function, (good,), {**given, "op": op})
            for op in (dist.ReduceOp.BAND, dist.ReduceOp.PREMUL_SUM, "summ", 7, None)
        }
    average = {"op": dist.ReduceOp.AVG}
    product = {"op": dist.ReduceOp.MAX}
    cases |= {
        "average of booleans": (dist.all_reduce, (torch.ones(2, dtype=torch.bool),), average),
        "maximum of complex": (dist.all_reduce, (good.to(torch.complex64),), product),
        "no root": (dist.broadcast, (good,)),
        "two roots": (dist.broadcast, (good, 0), {"group_src": 0}),
        "no such root": (dist.broadcast, (good, 7)),
        "root of another kind": (dist.broadcast, (good, "0")),
        "gathered size": (dist.all_gather_single, (torch.ones(3), good)),
        "gathered dtype": (dist.all_gather_single, (torch.ones(8, dtype=torch.int32), good)),
        "gathered list": (dist.all_gather_single, ([good], good)),
        "scattered size": (dist.reduce_scatter_single, (good, torch.ones(3))),
        "overlap": (dist.all_gather_single, (good, good[1:3])),
        "send strided": (dist.send, (strided, 1 - dist.get_rank())),
        "receive a dtype": (dist.recv, (quantity, 1 - dist.get_rank())),
        "send to nobody": (dist.isend, (good, 9)),
        "send to itself": (dist.isend, (good, dist.get_rank())),
        "receive from a name": (dist.irecv, (good, "x")),
        "no list": (dist.batch_isend_irecv, ((),)),
        "empty batch": (dist.batch_isend_irecv, ([],)),
        "strange batch": (dist.batch_isend_irecv, ([dist.isend],)),
        "strided batch": (dist.batch_isend_irecv, ([dist.P2POp(dist.isend, strided, 0)],)),
        "batch to nobody": (dist.batch_isend_irecv, ([dist.P2POp(dist.isend, good, 9)],)),
    }
    return cases


@on_ranks(2)
def test_mistakes_raise_equal_errors(dist: Any, rank: int, size: int) -> None:
    # Everything else is set up, so only the mistake prevents the fast path.
    dist.all_reduce(torch.ones(1))
    other = torch.ones(1)
    dist.isend(torch.ones(1), 1 - rank)
    dist.recv(other, 1 - rank)
    for what, (function, args, *keywords) in _mistakes(dist, torch).items():
        given = keywords[0] if keywords else {}
        with pytest.raises(Exception) as slow:  # noqa: PT011 compared below
            function.__wrapped__(*args, **given)
        with pytest.raises(type(slow.value)) as fast:
            function(*args, **given)
        assert str(fast.value) == str(slow.value), what
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


@on_ranks(3)
def test_p2p_ops(dist: Any, rank: int, size: int) -> None:
    tensor = torch.ones(2)
    pg = dist.new_group([1, 2])
    made = dist.P2POp(dist.isend, tensor, 1)
    assert (made.op, made.tensor, made.peer) == (dist.isend, tensor, 1)
    assert (made.group, made.tag, made.group_peer) == (dist.group.WORLD, 0, 1)
    assert f"isend pg=0, group_src={rank}, group_dst=1," in repr(made)
    made = dist.P2POp(dist.irecv, tensor, group_peer=0)
    assert (made.peer, made.group_peer) == (0, 0)
    assert f"irecv pg=0, group_src=0, group_dst={rank}," in repr(made)
    if rank == 0:  # outside the group, as torch
        assert dist.P2POp(dist.isend, tensor, 2, pg).group_peer == 1
    else:
        for _ in range(2):  # before and after the group's first operation
            made = dist.P2POp(op=dist.isend, tensor=tensor, peer=2, group=pg, tag=3)
            assert (made.peer, made.group, made.tag, made.group_peer) == (2, pg, 3, 1)
            made = dist.P2POp(dist.irecv, tensor, group=pg, group_peer=0)
            assert (made.peer, made.group, made.group_peer) == (1, pg, 0)
            dist.all_reduce(tensor, group=pg)
        dist.destroy_process_group(pg)
        with pytest.raises(ValueError, match="not registered"):
            dist.P2POp(dist.isend, tensor, 1, pg)
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.all_reduce(tensor, group=pg)
    if rank == 2:
        return
    group = dist.new_group([0, 1], use_local_synchronization=True)

    class Named(dist.P2POp):
        def __init__(self, name: str, *args: Any) -> None:
            super().__init__(*args)
            self.name = name

        def __new__(cls, _: str, *args: Any) -> Any:
            return super().__new__(cls, *args)

    named = Named("first", dist.isend, torch.full((2,), float(rank)), 1 - rank, group)
    assert named.name == "first"
    inbox = torch.zeros(2)
    for _ in range(2):
        for work in dist.batch_isend_irecv([named, dist.P2POp(dist.irecv, inbox, 1 - rank, group)]):
            work.wait()
        assert inbox.tolist() == [1.0 - rank] * 2
    operation = dist.P2POp(dist.isend, tensor, 1 - rank, group)
    operation.tensor = torch.full((2,), 5.0 + rank)
    (work,) = dist.batch_isend_irecv([dist.P2POp(dist.irecv, inbox, 1 - rank, group), operation])
    assert work.wait()
    assert inbox.tolist() == [6.0 - rank] * 2
    assert work.result()[0] is inbox
    assert "coalesced irecv, isend" in repr(work)
    with pytest.raises(TypeError, match="missing"):
        dist.P2POp(dist.isend)


@on_ranks(2)
def test_many_calls_leave_no_references(dist: Any, rank: int, size: int) -> None:
    """Hundreds of calls of each kind leave no reference behind."""
    peer = 1 - rank
    tensor, inbox, wide = torch.ones(4), torch.ones(4), torch.ones(4 * size)
    dist.isend(tensor, peer)
    dist.recv(inbox, peer)

    def calls() -> None:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, dist.ReduceOp.AVG, dist.group.WORLD, True)
        dist.broadcast(tensor, 0)
        dist.all_gather_single(wide, tensor, async_op=True)
        sending = dist.isend(tensor, peer)
        dist.recv(inbox, peer)
        sending.wait()
        operations = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, inbox, peer)]
        dist.batch_isend_irecv(operations)
        with pytest.raises(ValueError, match="out of range"):
            dist.broadcast(tensor, 5)

    def state() -> list[int]:
        gc.collect()
        held = (tensor, inbox, wide, dist.group.WORLD, dist.isend, dist.ReduceOp.AVG, 0, 1)
        return [sys.getrefcount(value) for value in held[:6]] + [len(gc.get_objects())]

    for _ in range(20):
        calls()
    for _ in range(2):  # later calls release completed operations
        dist.barrier(async_op=True).wait()
    before = state()
    for _ in range(1000 if FULL else 300):
        calls()
    for _ in range(2):
        dist.barrier(async_op=True).wait()
    grown = [after - number for after, number in zip(state(), before, strict=True)]
    assert max(grown) < 20, grown


@on_ranks(1, timeout=60)
def test_waiting_threads_release_the_gil(dist: Any, rank: int, size: int) -> None:
    """Many threads start operations of one rank; waiting threads release the GIL."""
    tensors = [torch.ones(1000) for _ in range(4)]

    def begin(tensor: Any) -> None:
        for _ in range(50):
            dist.all_reduce(tensor, async_op=True)

    in_threads(*(partial(begin, tensor) for tensor in tensors))
    dist.barrier(async_op=True).wait()


@on_ranks(2)
def test_common_calls_do_not_fall_back(dist: Any, rank: int, size: int) -> None:
    """The common calls never reach the Python functions."""
    peer = 1 - rank
    tensor, wide = torch.ones(4), torch.ones(4 * size)
    dist.isend(tensor, peer)
    dist.recv(wide[:4], peer)  # the first ones connect the two ranks
    with python_calls() as calls:
        for options in ({}, {"async_op": True}, {"group": dist.group.WORLD}):
            works = [
                dist.all_reduce(tensor, **options),
                dist.all_reduce(tensor, dist.ReduceOp.MAX, **options),
                dist.broadcast(tensor, 0, **options),
                dist.broadcast(tensor, group_src=1, **options),
                dist.reduce(tensor, dst=1, op=dist.ReduceOp.AVG, **options),
                dist.all_gather_single(wide, tensor, **options),
                dist.reduce_scatter_single(tensor, wide, **options),
            ]
            for work in filter(None, works):
                work.wait()
        sending = dist.isend(tensor, peer)
        dist.irecv(wide[:4], group_src=peer).wait()
        sending.wait()
        sending = dist.isend(tensor, dst=peer, group=dist.group.WORLD)
        dist.recv(wide[:4], peer)
        sending.wait()
        operations = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, wide[:4], peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    assert not {*FAST, "_arguments"} & calls.keys()  # _arguments() is behind P2POp
    with pytest.raises(TypeError, match="Expected parameter `tensor`"), python_calls() as calls:
        dist.all_reduce(None)
    assert calls["all_reduce"] == 1


@on_ranks(2)
def test_parameters_in_another_order(dist: Any, rank: int, size: int) -> None:
    """Arguments are bound by the Python function's parameters, regardless of their order."""
    from pynccl import _C

    def all_reduce(tensor, async_op=False, group=None, op=dist.ReduceOp.SUM):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        raise AssertionError("the fast function falls back")

    function = _C.fast(all_reduce)
    tensor = torch.full((2,), rank + 1.0)
    assert function(tensor, False, None, dist.ReduceOp.MAX) is None
    assert tensor.tolist() == [size] * 2
    assert function(tensor, True).wait()
    assert tensor.tolist() == [size * size] * 2


def test_incompatible_functions_are_rejected() -> None:
    from pynccl import _C

    def attached(name: str, function: Callable[..., Any]) -> Any:
        function.__name__ = name
        return _C.fast(function)

    with pytest.raises(ValueError, match=r"there is no fast function for scatter\(\)"):
        attached("scatter", lambda tensor: None)
    for function in (
        lambda tensor, root, op, group, async_op: None,
        lambda tensor, op, group: None,
        lambda tensor, group, async_op, *, op: None,
    ):
        with pytest.raises(TypeError, match=r"all_reduce\(\) does not have the parameters"):
            attached("all_reduce", function)
    with pytest.raises(TypeError, match="does not have the parameters"):
        _C.complete_p2p_ops(lambda op, tensor, peer, group, group_peer: None)


@pytest.mark.parametrize("name", FAST)
def test_defaults_of_fast_functions(name: str) -> None:
    """The C++ functions assume these defaults."""
    assumed = {"op": pynccl.ReduceOp.SUM, "async_op": False, "tag": 0}
    optional = {"group", "src", "dst", "group_src", "group_dst"}
    for parameter in inspect.signature(getattr(pynccl, name)).parameters.values():
        if parameter.name in assumed or parameter.name in optional:
            assert parameter.default == assumed.get(parameter.name)
        else:
            assert parameter.default is inspect.Parameter.empty


def test_unexpected_exceptions_are_raised() -> None:
    """A MemoryError in a check is raised instead of causing a fallback."""

    class Root:
        def __index__(self) -> int:
            raise MemoryError("in a check")

    pynccl.init_process_group("host", store=pynccl.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(MemoryError, match="in a check"), python_calls() as calls:
            pynccl.broadcast(torch.ones(1), Root())
        assert not calls["broadcast"]
    finally:
        pynccl.destroy_process_group()
