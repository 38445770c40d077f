"""Proves the collectives as torch operators: correct results, compiled without a graph break by
every backend, in sub-groups; gradients equal to finite differences of the sum of all ranks' losses;
errors for mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import on_ranks
from tests.support.tier import FULL

torch = pytest.importorskip("torch")

World = Callable[..., list[Any]]


def _input(rank: int, size: int, rows: int = 2) -> Any:
    return torch.randn(rows * size, 3, generator=torch.Generator().manual_seed(rank)).double()


def _inputs(size: int) -> list[Any]:
    return [_input(rank, size) for rank in range(size)]


def _functional(ops: Any, rank: int, size: int, group: Any) -> dict[str, tuple[Any, Any]]:
    """Each functional form and its result on a rank."""
    xs = _inputs(size)
    total, last = torch.stack(xs).sum(0), size - 1
    blocks = slice(2 * rank, 2 * rank + 2)
    # Uneven: rank s sends 1 + (s + d) % 2 rows to rank d.
    sent = [[1 + (s + d) % 2 for d in range(size)] for s in range(size)]
    parts = [torch.split(xs[s][: sum(sent[s])], sent[s])[rank] for s in range(size)]
    received = [len(part) for part in parts]

    def uneven(x: Any) -> Any:
        return ops.all_to_all(x[: sum(sent[rank])], received, sent[rank], group=group)

    zeros = torch.zeros_like
    return {
        "all_reduce": (lambda x: ops.all_reduce(x, group=group), total),
        "all_reduce avg": (lambda x: ops.all_reduce(x, "avg", group), total / size),
        "broadcast": (lambda x: ops.broadcast(x, last, group), xs[last]),
        "reduce": (
            lambda x: ops.reduce(x, last, group=group), total if rank == last else zeros(total)
        ),
        "reduce avg": (
            lambda x: ops.reduce(x, 0, "avg", group), total / size if rank == 0 else zeros(total)
        ),
        "all_gather": (lambda x: ops.all_gather(x, group), torch.cat(xs)),
        "reduce_scatter": (lambda x: ops.reduce_scatter(x, group=group), total[blocks]),
        "reduce_scatter avg": (
            lambda x: ops.reduce_scatter(x, "avg", group), total[blocks] / size
        ),
        "all_to_all": (
            lambda x: ops.all_to_all(x, group=group), torch.cat([x[blocks] for x in xs])
        ),
        "all_to_all uneven": (uneven, torch.cat(parts)),
        "gather": (
            lambda x: ops.gather(x, last, group),
            torch.cat(xs) if rank == last else zeros(torch.cat(xs)),
        ),
        "scatter": (lambda x: ops.scatter(x, last, group), xs[last][blocks]),
    }  # fmt: skip


@on_ranks(2, 3, timeout=180)
def test_results(dist: Any, rank: int, size: int) -> None:
    from pynccl import ops

    x = _input(rank, size)
    for name, (call, expected) in _functional(ops, rank, size, None).items():
        torch.testing.assert_close(call(x), expected, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(call(x.t().contiguous().t()), expected)  # any strides
    assert torch.equal(x, _input(rank, size))
    for op, reduce in (("max", torch.amax), ("min", torch.amin), ("product", torch.prod)):
        torch.testing.assert_close(ops.all_reduce(x, op), reduce(torch.stack(_inputs(size)), 0))
    # A separate group, as an object and by name.
    for group in (dist.new_group(list(range(size))), dist.new_group(list(range(size))).group_name):
        torch.testing.assert_close(ops.all_gather(x, group), torch.cat(_inputs(size)))
    alone = [dist.new_group([r]) for r in range(size)][rank]
    assert torch.equal(ops.all_gather(x, alone), x)


def _compiled(dist: Any, rank: int, size: int, backend: str) -> None:
    from pynccl import ops

    group = dist.new_group(list(range(size)))
    calls = [call for call, _ in _functional(ops, rank, size, None).values()]
    calls += [call for call, _ in _functional(ops, rank, size, group).values()][::4]
    if backend == "inductor":  # compiling each takes time
        calls = calls[:: len(calls) // 3] if FULL else calls[:1]
    weight = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)

    def step(x: Any) -> Any:
        y = (x @ weight / 9).tanh()
        return torch.stack([call(y).sin().sum() for call in calls]).sum()

    def run(function: Any) -> list[Any]:
        x = _input(rank, size).requires_grad_()
        loss = function(x)
        loss.backward()  # also compiled
        return [loss.detach(), x.grad]

    expected = run(step)
    assert expected[-1].count_nonzero()
    if rank > 0:  # compiling takes seconds, so these ranks run the same operations uncompiled
        torch.testing.assert_close(run(step), expected)
        if backend != "inductor":
            step(_input(rank, size))
        return
    torch.testing.assert_close(run(torch.compile(step, fullgraph=True, backend=backend)), expected)
    if backend == "inductor":
        return
    explanation = torch._dynamo.explain(step)(_input(rank, size))
    assert (explanation.graph_break_count, explanation.graph_count) == (0, 1)
    targets = {str(node.target) for node in explanation.graphs[0].graph.nodes}
    assert "pynccl.all_reduce" in str(targets)


# Some ranks finish compiling later than others.
_PATIENT = {"timeout": timedelta(seconds=200)}


def test_compiled_without_a_graph_break(world: World) -> None:
    world(2, _compiled, "aot_eager", timeout=240, init=_PATIENT)


@pytest.mark.skipif(not FULL, reason="the compiler takes half a minute: `make test-all`")
def test_compiled_to_machine_code(world: World, tmp_path: Path) -> None:
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    world(2, _compiled, "inductor", env=env, timeout=240, fresh=True, init=_PATIENT)


@on_ranks(1, timeout=180)
def test_the_operators_pass_torchs_check(dist: Any, rank: int, size: int) -> None:
    """Schemas, fake implementations, registrations and symbolic shapes pass torch's check."""
    from pynccl import ops

    x = _input(rank, size)
    for operator, arguments in {
        ops._all_reduce: (x.clone().requires_grad_(), "sum", ""),
        ops._broadcast: (x.clone().requires_grad_(), 0, ""),
        ops._reduce: (x.clone().requires_grad_(), 0, "sum", ""),
        ops._all_gather: (x.clone().requires_grad_(), ""),
        ops._reduce_scatter: (x.clone().requires_grad_(), "avg", ""),
        ops._all_to_all: (x.clone().requires_grad_(), None, None, ""),
        ops._gather: (x.clone().requires_grad_(), 0, ""),
        ops._scatter: (x.clone().requires_grad_(), 0, ""),
    }.items():
        torch.library.opcheck(operator, arguments)


@on_ranks(2, 3, timeout=180)
def test_gradients_are_the_derivatives(dist: Any, rank: int, size: int) -> None:
    """Differences of the sum of all losses, for elements of each rank's input."""
    from pynccl import ops

    step = 1e-6
    for name, (call, _) in _functional(ops, rank, size, None).items():

        def loss(x: Any, call: Any = call) -> Any:
            y = call(x)
            return (y.sin() * torch.arange(1.0, 1 + y.numel()).reshape(y.shape)).sum()

        x = _input(rank, size).requires_grad_()
        loss(x).backward()
        for owner in range(size):
            for index in range(0, x.numel(), 5):
                ends = []
                for sign in (1, -1):
                    moved = _input(rank, size)
                    if rank == owner:
                        moved.view(-1)[index] += sign * step
                    total = loss(moved).detach().clone()
                    dist.all_reduce(total)
                    ends.append(total)
                if rank == owner:
                    numeric = (ends[0] - ends[1]) / (2 * step)
                    found = x.grad.view(-1)[index]
                    torch.testing.assert_close(
                        found, numeric, rtol=1e-5, atol=1e-6,
                        msg=lambda text, name=name: f"{name}: {text}",
                    )  # fmt: skip


@on_ranks(2)
def test_operators_of_all_kinds(dist: Any, rank: int, size: int) -> None:
    from pynccl import nccl, ops

    def reduced(x: Any, op: Any) -> Any:
        return ops.all_reduce(x, op)

    compiled = torch.compile(reduced, fullgraph=True, backend="eager") if rank == 0 else reduced

    of = dist.ReduceOp
    mean = (size + 1) / 2
    for want, forms in (
        (mean * size, ["sum", of.SUM, nccl.SUM]),
        (mean, ["avg", of.AVG, nccl.AVG]),
        (size, ["max", of.MAX, nccl.MAX]),
        (1, ["min", of.MIN, nccl.MIN]),
        (math.factorial(size), ["prod", "product", of.PRODUCT, nccl.PROD]),
    ):
        torch.compiler.reset()
        for op in forms:
            x = torch.full((size,), rank + 1.0)
            for got in (
                ops.all_reduce(x, op),
                compiled(x, op),
                ops.reduce_scatter(x, op),
            ):
                assert got.tolist() == [want] * len(got), op
            assert ops.reduce(x, 0, op).tolist() == [0 if rank else want] * size
        if want in (mean * size, mean):
            x = torch.ones(size, requires_grad=True)
            ops.all_reduce(x, forms[1]).sum().backward()
            assert x.grad.tolist() == [1.0 if want == mean else size] * size


@on_ranks(2, timeout=180)
def test_mistakes(dist: Any, rank: int, size: int) -> None:
    from pynccl import ops

    x = torch.ones(2 * size + 1, 3)
    with pytest.raises(ValueError, match="op: 'mean' is not one of 'sum', 'avg'"):
        ops.all_reduce(x, "mean")
    with pytest.raises(TypeError, match="op: expected a ReduceOp, a RedOp or a str, got 7"):
        ops.all_reduce(x, 7)
    with pytest.raises(ValueError, match="it has no bitwise operators"):
        ops.all_reduce(x, dist.ReduceOp.BAND)
    with pytest.raises(ValueError, match=r"RedOp\.PRE_MUL_SUM has a factor, which has no name"):
        ops.all_reduce(x, dist.get_backend_impl().pre_mul_sum(2.0, "float32"))
    with pytest.raises(ValueError, match="no group 'nobody'"):
        ops.all_reduce(x, group="nobody")
    with pytest.raises(ValueError, match="is not a group of this rank"):
        ops.all_reduce(x, group=dist.GroupMember.NON_GROUP_MEMBER)
    for call in (ops.reduce_scatter, ops.all_to_all, ops.scatter):
        with pytest.raises(ValueError, match=rf"shape \({2 * size + 1}, 3\) cannot be divided"):
            call(x)
    with pytest.raises(ValueError, match="a scalar has no first dimension"):
        ops.all_gather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="input_split_sizes: 1 sizes for 2 ranks"):
        ops.all_to_all(x, [1] * size, [3])
    rooted: dict[Any, str] = {
        ops.broadcast: "src",
        ops.scatter: "src",
        ops.reduce: "dst",
        ops.gather: "dst",
    }
    for rooted_call, name in rooted.items():
        with pytest.raises(ValueError, match=f"^{name}: rank {size} is out of range"):
            rooted_call(torch.ones(size), size)
    operations: list[Any] = [ops.all_reduce, ops.all_gather, ops.reduce_scatter, ops.all_to_all]
    for operation in (*operations, *rooted):
        with pytest.raises(ValueError, match=r"^tensor: dtype torch\.int16 is not"):
            operation(torch.ones(size, dtype=torch.int16))
    with pytest.raises(RuntimeError, match="'max' has no gradient"):
        ops.all_reduce(x.clone().requires_grad_(), "max").sum().backward()
    # All before anything is sent.
    assert (ops.all_reduce(x) == size).all()


@on_ranks(2, timeout=180)
def test_mirrors_functions_break_the_graph_and_work(dist: Any, rank: int, size: int) -> None:
    def step(x: Any) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    x = torch.full((4,), rank + 1.0)
    expected = 2 * sum(range(1, size + 1)) + 1
    assert (torch.compile(step, backend="eager")(x) == expected).all()
    assert torch._dynamo.explain(step)(x).graph_break_count >= 1
