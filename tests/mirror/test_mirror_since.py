"""Proves the additions of torch.distributed 2.14, on 2 and 4 ranks and with every torch:
gather_single, weights_only, set_timeout, get_backend_impl, and members of groups.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from tests.support.ranks import on_ranks

SIZES = (2, 4)


@on_ranks(*SIZES)
def test_gather_single(dist: Any, rank: int, size: int) -> None:
    """The result is that of torch's gather, concatenated."""
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
        for shape in ((3, 2), (5,), (), (0, 4)):
            parts = [torch.full(shape, r).to(dtype) for r in range(size)]
            for root, subject in ((0, dist.gather_single), (size - 1, dist.gather_into_tensor)):
                for async_op in (False, True):
                    output = torch.zeros((size, *shape), dtype=dtype) if rank == root else None
                    work = subject(parts[rank], output, dst=root, async_op=async_op)
                    assert (work is not None) == async_op
                    if work is not None:
                        work.wait()
                        assert [id(t) for t in work.result()] == [id(output)] * (rank == root)
                    assert output is None or torch.equal(output, torch.stack(parts))
    pg = dist.new_group(list(range(size))[::-1], sort_ranks=False)
    output = torch.zeros(size, dtype=torch.int64)
    dist.gather_single(torch.tensor([rank]), output, group=pg, group_dst=0)
    assert output.tolist() == (list(range(size))[::-1] if rank == size - 1 else [0] * size)


@on_ranks(*SIZES)
def test_errors_of_gather_single(dist: Any, rank: int, size: int) -> None:
    own = torch.ones(2)
    if rank == 0:
        with pytest.raises(ValueError, match="must be specified on the destination rank"):
            dist.gather_single(own)
        with pytest.raises(ValueError, match="gather_tensor: has 3 elements, must have 2 for each"):
            dist.gather_single(own, torch.ones(3))
        with pytest.raises(ValueError, match="must be contiguous"):
            dist.gather_single(own, torch.ones(2, size).t())
        with pytest.raises(ValueError, match="different dtypes"):
            dist.gather_single(own, torch.ones(2 * size, dtype=torch.int32))
        with pytest.raises(TypeError, match="parameter `gather_tensor`"):
            dist.gather_single(own, [own] * size)
    with pytest.raises(TypeError, match="parameter `tensor`"):
        dist.gather_single([own])
    with pytest.raises(ValueError, match="both group_rank and global_rank"):
        dist.gather_single(own, own, dst=0, group_dst=0)
    dist.barrier()


class _Harmful:
    """Unpickling it calls a function."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def _sends(dist: Any, rank: int, size: int) -> dict[str, Callable[..., Any]]:
    """Each object function; they return the objects received by this rank."""

    def all_gather(value: Any, **options: Any) -> Any:
        every = [None] * size
        dist.all_gather_object(every, value, **options)
        return every[size - 1]

    def gather(value: Any, **options: Any) -> Any:
        every = [None] * size
        dist.gather_object(value, every if rank == 0 else None, **options)
        return every[size - 1]

    def broadcast(value: Any, **options: Any) -> Any:
        some = [value]
        dist.broadcast_object_list(some, src=size - 1, **options)
        return some[0] if rank != size - 1 else None

    def scatter(value: Any, **options: Any) -> Any:
        got = [None]
        given = [value] * size if rank == size - 1 else None
        dist.scatter_object_list(got, given, src=size - 1, **options)
        return got[0]

    def transfer(value: Any, **options: Any) -> Any:
        some = [None]
        if rank == size - 1:
            dist.send_object_list([value], dst=0, **options)
        elif rank == 0:
            dist.recv_object_list(some, src=size - 1, **options)
        return some[0]

    transfers = {
        f"transfer {use_batch}": functools.partial(transfer, use_batch=use_batch)
        for use_batch in (False, True)
    }
    functions = {f.__name__: f for f in (all_gather, gather, broadcast, scatter)}
    return {**functions, **(transfers if size == 2 else {"transfer": transfer})}


@on_ranks(*SIZES)
def test_weights_only(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    """Safe objects arrive; a pickle that runs code does so only without weights_only."""
    folder = str(tmp_path)

    safe = {"tensor": torch.arange(3), "list": [1, "two", None, 4.5], 5: (True,)}
    for name, send in _sends(dist, rank, size).items():
        for options in ({}, {"weights_only": False}, {"weights_only": True}):
            got = send(safe, **options)
            if got is not None:
                assert torch.equal(got["tensor"], safe["tensor"])
                assert {**got, "tensor": 0} == {**safe, "tensor": 0}
        harmful = _Harmful(f"{folder}/{name} {rank}")
        path = Path(f"{folder}/{name} {size - 1}")  # unpickling the last rank's object runs code
        try:
            send(harmful, weights_only=True)
        except pickle.UnpicklingError as error:
            refused = "Weights only load failed" in str(error)
        else:
            refused = False
        reads = {"all_gather": True, "broadcast": rank < size - 1, "scatter": True}
        assert refused == reads.get(name, rank == 0), name
        dist.barrier()
        assert not path.exists()
        dist.barrier()
        send(harmful)
        dist.barrier()
        assert path.exists()


@pytest.mark.skipif(
    "weights_only" not in inspect.signature(torch_dist.all_gather_object).parameters,
    reason=f"torch {torch.__version__} has no weights_only",
)
@on_ranks(*SIZES)
def test_weights_only_as_torch(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    """The transferred bytes are torch's: the same types are accepted and rejected."""
    url = f"file://{tmp_path}/torch"
    torch_dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)
    try:
        for value in (1, torch.ones(2), {"a": [2.5]}, timedelta(seconds=1), Path("x"), {3}):
            results: list[Any] = []
            for module in (dist, torch_dist):
                every = [None] * size
                try:
                    module.all_gather_object(every, value, weights_only=True)
                    results.append(str(every))
                except pickle.UnpicklingError as error:
                    results.append(str(error))
            assert results[0] == results[1]
        dist.barrier()
    finally:
        torch_dist.destroy_process_group()


@on_ranks(*SIZES, env={"HOSTNCCL_DEADLOCK_MS": "30000"})
def test_set_timeout(dist: Any, rank: int, size: int) -> None:
    """It applies to existing and future communicators of this group only."""
    pg = dist.new_group(timeout=timedelta(seconds=300))
    early = dist.new_group()
    value = torch.ones(1)
    dist.all_reduce(value, group=pg)
    if rank < 2:
        peer = 1 - rank
        if rank == 0:
            dist.send(value, group_dst=peer, group=pg)
        else:
            dist.recv(value, group_src=peer, group=pg)
    assert dist.get_backend_impl(pg).timeout == 300
    other = timedelta(seconds=40)
    dist.set_timeout(other, pg)
    assert pg.timeout == other
    assert dist.get_backend_impl(pg).timeout == 40
    assert dist.get_backend_impl(early).timeout == 1800
    work = dist.all_reduce(value, group=pg, async_op=True)
    assert work.timeout == other
    work.wait()
    for bad in (5, None, "1"):
        with pytest.raises(TypeError, match="timeout: expected a datetime"):
            dist.set_timeout(bad, pg)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.set_timeout(other, dist.GroupMember.NON_GROUP_MEMBER)
    if rank == 0:  # a transfer without a counterpart, on the existing pair
        dist.set_timeout(timedelta(seconds=1), pg)
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out after 1 seconds"):
            dist.recv(value, group_src=1, group=pg)
        assert 0.9 < time.monotonic() - began < 20
    dist.barrier()
    dist.set_timeout(timedelta(seconds=77))
    assert dist.get_backend_impl().timeout == 77


@on_ranks(*SIZES)
def test_get_backend_impl(dist: Any, rank: int, size: int) -> None:
    from pynccl import nccl

    comm = dist.get_backend_impl()
    assert isinstance(comm, nccl.Communicator)
    assert (comm.rank, comm.nranks) == (rank, size)
    assert comm is dist.get_backend_impl(device=torch.device("cpu"))
    assert comm is dist.group.WORLD.get_backend(torch.device("cpu"))
    pg = dist.new_group()
    assert dist.get_backend_impl(pg) is dist.get_backend_impl(pg.group_name) is not comm
    with pytest.raises(ValueError, match="group: unknown process group 'none'"):
        dist.get_backend_impl("none")
    with pytest.raises(RuntimeError, match="No backend type associated with device type meta"):
        dist.get_backend_impl(device=torch.device("meta"))
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.get_backend_impl(dist.GroupMember.NON_GROUP_MEMBER)
