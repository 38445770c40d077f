"""Proves that every operation of the mirror passes the hooks, with the same record from Python and
from the fast functions, and that the hooks get errors and aborts, but cannot change an operation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from tests.support.ranks import on_ranks

pytest.importorskip("torch")


def _calls(dist: Any, rank: int, size: int, torch: Any) -> dict[str, Callable[[], Any]]:
    """An operation of each kind, by the kind that its record must have."""
    peer = 1 - rank
    tensor, wide = torch.ones(2), torch.ones(2 * size)
    parts = [torch.ones(2) for _ in range(size)]
    root = rank == 0

    def coalesced() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(tensor)
            dist.all_reduce(wide)

    def batch() -> None:
        operations = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, wide[:2], peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def send_and_receive() -> None:
        sending = dist.isend(tensor, peer)
        dist.recv(wide[:2], peer)
        sending.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "reduce": lambda: dist.reduce(tensor, 1, dist.ReduceOp.MAX),
        "all_gather_single": lambda: dist.all_gather_single(wide, tensor, async_op=True).wait(),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(tensor, wide),
        "all_gather": lambda: dist.all_gather(parts, tensor),
        "gather": lambda: dist.gather(tensor, parts if root else None),
        "scatter": lambda: dist.scatter(tensor, parts if root else None),
        "reduce_scatter": lambda: dist.reduce_scatter(tensor, parts),
        "all_to_all": lambda: dist.all_to_all(parts, [tensor] * size),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(2 * size), wide),
        "barrier": dist.barrier,
        "coalesced all_reduce": coalesced,
        "coalesced irecv, isend": batch,
        "send, recv": send_and_receive,
    }


@on_ranks(2)
def test_every_operation_passes_the_hooks(dist: Any, rank: int, size: int) -> None:
    from pynccl.mirror.group.hooks import add_operation_hooks

    seen: list[tuple[Any, ...]] = []

    def before(record: Any) -> None:
        assert record.comm_stream is not None
        seen.append(("before", record.kind))

    def after(record: Any, work: Any, error: Any) -> None:
        assert (work is not None) is record.async_op
        assert error is None
        seen.append(("after", record.kind))

    calls = _calls(dist, rank, size, torch)
    for call in calls.values():  # what they need is made before
        call()
    with add_operation_hooks(before, after):
        for kinds, call in calls.items():
            seen.clear()
            call()
            expected = [kinds] if kinds.startswith("coalesced") else kinds.split(", ")
            assert seen == [(when, kind) for kind in expected for when in ("before", "after")]
        seen.clear()
        dist.all_gather_object([None] * size, "object")
        assert [kind for when, kind in seen if when == "after"] == [
            "all_gather_single",
            "all_gather_object",
        ]
    seen.clear()
    dist.all_reduce(torch.ones(1))
    assert not seen


def _described(record: Any) -> tuple[Any, ...]:
    return (
        record.kind,
        record.async_op,
        record.source,
        id(record.tensor),
        [
            (call.method, id(call.tensor), call.root_or_peer, call.op, call.out is None)
            for call in record.calls
        ],
        [id(tensor) for tensor in record.result],
    )


@on_ranks(2)
def test_fast_functions_and_python_make_the_same_record(dist: Any, rank: int, size: int) -> None:
    from pynccl.mirror.group.hooks import add_operation_hooks

    peer = 1 - rank
    tensor, inbox, wide, product = *torch.ones(2, 2), torch.ones(4), dist.ReduceOp.PRODUCT
    operations = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, inbox, peer)]
    cases = {
        "all_reduce": ((tensor,), {"op": product}),
        "broadcast": ((tensor, 1), {"async_op": True}),
        "reduce": ((tensor,), {"group_dst": 1}),
        "all_gather_single": ((wide, tensor), {}),
        "reduce_scatter_single": ((tensor, wide), {"async_op": True}),
        "isend": ((tensor, peer), {}),
        "irecv": ((inbox, peer), {}),
        "batch_isend_irecv": ((operations,), {}),
    }
    dist.isend(tensor, peer)  # connects the two ranks
    dist.recv(inbox, peer)
    records: list[Any] = []
    for name, (arguments, options) in cases.items():
        function = getattr(dist, name)
        works: list[Any] = []
        described = []
        with add_operation_hooks(records.append):
            for call in (function, function.__wrapped__):
                works.append(call(*arguments, **options))
                described.append(_described(records.pop()))
        assert described[0] == described[1], name
        for work in works:
            for each in work if isinstance(work, list) else [work]:
                if each is not None and name not in ("isend", "irecv"):
                    each.wait()


@on_ranks(2, env={"HOSTNCCL_DEADLOCK_MS": "30000"})  # rank 1 waits for rank 0 in another group
def test_failures(dist: Any, rank: int, size: int) -> None:
    from pynccl.mirror.group.hooks import add_operation_hooks

    errors: list[Any] = []
    aborted: list[Any] = []
    unraisable: list[Any] = []
    pg = dist.new_group()
    dist.all_reduce(torch.ones(1), group=pg)
    dist.set_timeout(timedelta(seconds=0.5), pg)
    sys.unraisablehook = unraisable.append

    def fails(_: Any) -> None:
        raise LookupError("a mistake in a hook")

    hooks = add_operation_hooks(fails)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size
    assert [type(item.exc_value) for item in unraisable] == [LookupError]
    hooks.remove()
    hooks.remove()
    with add_operation_hooks(
        after=lambda record, work, error: errors.append(error),
        on_abort=lambda comm_stream, reason: aborted.append((comm_stream, reason)),
    ):
        if rank == 0:
            comm_stream = pg.comm_stream(torch.device("cpu"))
            with pytest.raises(
                dist.DistBackendError, match=r"Timed out after 0\.5 seconds"
            ) as caught:
                dist.all_reduce(torch.ones(1), group=pg)
            assert errors == [caught.value]
            assert [given for given, _ in aborted] == [comm_stream]
            assert "the operation Timed out after 0.5 seconds" in aborted[0][1]
            errors.clear()
        dist.all_reduce(tensor)
        assert errors == [None]
    sys.unraisablehook = sys.__unraisablehook__


@on_ranks(2)
def test_operations_are_ranges_of_a_profiler(dist: Any, rank: int, size: int) -> None:
    from pynccl.mirror.group import profiling

    calls = _calls(dist, rank, size, torch)
    for call in calls.values():  # what they need is made before
        call()
    kinds = [key for key in calls if key.startswith("coalesced")]
    kinds += [kind for key in calls if key not in kinds for kind in key.split(", ")]
    for profile in (torch.profiler.profile, torch.autograd.profiler.profile):
        assert profiling._ranges._hooks is None
        with profile() as profiled:
            for call in calls.values():
                call()
        counts = {event.key: event.count for event in profiled.key_averages()}
        found = {key: count for key, count in counts.items() if key.startswith("pynccl:")}
        assert found == {f"pynccl:{kind}": 1 for kind in kinds}, found
    assert profiling._ranges._hooks is None


@on_ranks(1)
def test_a_profiler_that_runs_already(dist: Any, rank: int, size: int) -> None:
    with torch.profiler.profile() as profiled:
        dist.destroy_process_group()
        dist.init_process_group("host", store=torch.distributed.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
    assert "pynccl:all_reduce" in {event.key for event in profiled.key_averages()}
