"""Proves that groups behave like torch's: ranks, names, members and non-members, split, shrink,
end.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as torch_dist

from tests.support import gpu
from tests.support.blocking import together
from tests.support.in_world import run_in_world
from tests.support.launcher import Launcher
from tests.support.rank import Rank, wait_for
from tests.support.ranks import on_ranks

World = Callable[..., list[Any]]


@on_ranks(1, 2, 3)
def test_identity(dist: Any, rank: int, size: int) -> None:
    pg = dist.group.WORLD
    assert dist.is_initialized()
    assert pg is dist.GroupMember.WORLD
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    assert (pg.rank(), pg.size()) == (rank, size)
    assert dist.get_backend() == "host" == dist.Backend.HOST
    assert dist.get_backend_config() == "cpu:host"
    assert dist.get_process_group_ranks(None) == list(range(size))
    assert dist.get_pg_count() == 1
    assert dist.get_default_backend_for_device("cpu") == "host"
    assert dist.get_default_backend_for_device(torch.device("cuda")) == "nccl"
    with pytest.raises(ValueError, match="Default backend not registered"):
        dist.get_default_backend_for_device("meta")
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("host")


def _backend_by_device(dist: Any, rank: int, size: int) -> str:
    return dist.get_backend()  # type: ignore[no-any-return]


def test_backends(world: World) -> None:
    """None selects the backends that the machine supports."""
    expected = "cpu:host,cuda:nccl" if torch.cuda.is_available() else "host"
    assert world(2, _backend_by_device, init={"backend": None}) == [expected] * 2


@pytest.mark.gpu
def test_both_backends(world: World) -> None:
    if reason := gpu.missing():
        pytest.skip(reason)
    both = world(2, _backend_by_device, init={"backend": "cpu:host,cuda:nccl"})
    assert both == ["cpu:host,cuda:nccl"] * 2


@pytest.mark.parametrize("backend", ["nccl", "NCCL", "cuda:nccl", "cpu:host,cuda:nccl"])
def test_nccl_without_a_gpu(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """It fails immediately, without the other ranks, and names the alternatives."""
    import pynccl as dist

    assert not dist.is_initialized()  # imports what init_process_group needs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for built, visible, reason in (
        (False, "0", f"torch {re.escape(torch.__version__)} is built without CUDA"),
        (True, "", "CUDA_VISIBLE_DEVICES is '', which hides all GPUs"),
        (True, "0", r"torch\.cuda\.is_available\(\) is False"),
    ):
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda built=built: built)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        began = time.monotonic()
        with pytest.raises(ValueError, match=rf"{reason}.*Pass backend='host'.*or None"):
            dist.init_process_group(backend, init_method="tcp://127.0.0.1:1", rank=1, world_size=2)
        assert time.monotonic() - began < 20  # the timeout is minutes
        assert not dist.is_initialized()


def test_nccl_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynccl as dist
    from pynccl import libraries

    def missing(_: str) -> None:
        raise libraries.LibraryNotFoundError("libnccl.so.2 was not found")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(libraries, "load", missing)
    with pytest.raises(libraries.LibraryNotFoundError, match=r"libnccl\.so\.2 was not found"):
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=1, world_size=2)
    assert not dist.is_initialized()


@on_ranks(2)
def test_a_new_group_with_nccl_without_a_gpu(dist: Any, rank: int, size: int) -> None:
    if torch.cuda.is_available():
        return
    with pytest.raises(ValueError, match=r"backend 'nccl': .*Pass backend='host'"):
        dist.new_group(backend="nccl")
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("gloo", "pass backend='host'"),
        ("mpi", "pass backend='host'"),
        ("cpu:gloo,cuda:nccl", "pass backend='host'"),
        ("cpu:nccl", "'nccl' supports tensors on 'cuda', not on 'cpu'"),
        ("cpu:host,cpu:host", "two backends for the device 'cpu'"),
        ("hosst", "unknown backend 'hosst': pynccl supports 'nccl' and 'host'"),
        ("pynccl", r"torch\.distributed\.init_process_group\('pynccl'\)"),
    ],
)
def test_rejected_backends(backend: str, message: str) -> None:
    import pynccl as dist

    with pytest.raises(ValueError, match=message):
        dist.init_process_group(backend, rank=0, world_size=1)
    assert not dist.is_initialized()


class _CommStream:
    """Records its calls; some of them fail."""

    def __init__(self, name: str, calls: list[str], failing: str = "") -> None:
        self.name, self.calls, self.failing = name, calls, failing

    def _call(self, call: str) -> None:
        self.calls.append(f"{call} {self.name}")
        if call == self.failing:
            raise RuntimeError(f"{call} {self.name} fails")

    def finish(self, started: float) -> None:
        self._call("finish")

    def free(self) -> None:
        self._call("free")


def test_all_communicators_are_closed_if_one_fails() -> None:
    """All are finalized before any is destroyed, and the first error is raised at the end."""
    from pynccl.mirror.group.comm_stream import close_all

    calls: list[str] = []
    failing = {"a": "finish", "b": "free", "c": ""}
    with pytest.raises(RuntimeError, match="finish a fails"):
        close_all(_CommStream(name, calls, call) for name, call in failing.items())  # type: ignore[misc]
    assert calls == [f"{call} {name}" for call in ("finish", "free") for name in "abc"]


def test_invalid_arguments_of_init() -> None:
    import pynccl as dist

    store = dist.HashStore()
    with pytest.raises(AssertionError, match="both init_method and store"):
        dist.init_process_group("host", init_method="env://", store=store, rank=0, world_size=1)
    with pytest.raises(AssertionError, match="world_size must be positive"):
        dist.init_process_group("host", store=store, rank=0)
    with pytest.raises(AssertionError, match="rank must be non-negative"):
        dist.init_process_group("host", store=store, world_size=1)
    with pytest.raises(ValueError, match="rank: 2 is out of range for a world of 2 ranks"):
        dist.init_process_group("host", store=store, rank=2, world_size=2)
    with pytest.raises(TypeError, match=r"datetime\.timedelta, got 5"):
        dist.init_process_group("host", store=store, rank=0, world_size=1, timeout=5)
    with pytest.raises(TypeError, match="pg_options"):
        dist.init_process_group("host", store=store, rank=0, world_size=1, pg_options=3)
    for device, message in ((0, "no accelerator"), (torch.device("xpu"), "xpu does not match")):
        with pytest.raises(ValueError, match=message):
            dist.init_process_group(store=store, rank=0, world_size=1, device_id=device)
    for name, value in (("blocking", 0), ("split_share", 1), ("shrink_share", 1)):
        config = dist.nccl.Config(**{name: value})
        with pytest.raises(ValueError, match=rf"{name}={value}.* not supported"):
            dist.init_process_group("host", store=store, rank=0, world_size=1, pg_options=config)
    assert not dist.is_initialized()


@on_ranks(2, fixture="any_world")
def test_the_first_operations_of_several_threads(dist: Any, rank: int, size: int) -> None:
    """One of them creates the communicator."""
    tensors = [torch.full((3,), rank + 1.0) for _ in range(4)]
    calls = [partial(dist.all_reduce, tensor) for tensor in tensors]
    assert together(*calls) == [None] * 4
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 3] * 4


def _init_as_rank_0(rank: Rank) -> str:
    import pynccl as dist

    limit = timedelta(seconds=2)
    with pytest.raises((ValueError, dist.DistStoreError)) as caught:
        dist.init_process_group(
            "host", init_method=rank.init_method, rank=0, world_size=2, timeout=limit
        )
    assert not dist.is_initialized()
    return str(caught.value)


def test_two_processes_with_one_rank(launch: Launcher) -> None:
    texts = sorted(launch(2, _init_as_rank_0))
    assert "rank 0: Timed out waiting 2 seconds for rank 1" in texts[0]
    assert "rank: 0 has joined this job before; another process uses the same rank" in texts[1]


def test_without_init() -> None:
    import pynccl as dist

    for call in (dist.get_rank, dist.barrier, lambda: dist.all_reduce(torch.ones(1))):
        with pytest.raises(ValueError, match="has not been initialized"):
            call()
    with pytest.raises(AssertionError, match="cannot be None"):
        dist.destroy_process_group()


@on_ranks(3, 4, fixture="any_world")
def test_new_group(dist: Any, rank: int, size: int) -> None:
    pg = dist.new_group([size - 1, 0])
    if rank not in (0, size - 1):
        assert pg == dist.GroupMember.NON_GROUP_MEMBER == -100
        return  # test_mirror_outside.py calls all functions on such a rank
    expected = 0 if rank == 0 else 1
    assert dist.get_rank(pg) == expected
    assert dist.get_process_group_ranks(pg) == [0, size - 1]
    assert dist.get_group_rank(pg, size - 1) == 1
    assert dist.get_global_rank(pg, 1) == size - 1
    with pytest.raises(ValueError, match="Global rank 1 is not part"):
        dist.get_group_rank(pg, 1)
    with pytest.raises(ValueError, match="Group rank 2 is not part"):
        dist.get_global_rank(pg, 2)
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, src=size - 1, group=pg)
    assert tensor.tolist() == [size - 1.0] * 3
    dist.destroy_process_group(pg)
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(pg)
    with pytest.raises(ValueError, match="it was destroyed"):
        dist.all_reduce(tensor, group=pg)
    assert dist.get_pg_count() == 2


@on_ranks(3)
def test_new_group_variants(dist: Any, rank: int, size: int) -> None:
    turned = dist.new_group([2, 0, 1], sort_ranks=False, group_desc="turned")
    assert dist.get_process_group_ranks(turned) == [2, 0, 1]
    assert turned.rank() == [1, 2, 0][rank]
    assert turned.group_desc == "turned"
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, src=2, group=turned)
    assert tensor.item() == 2
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, group_src=1, group=turned)
    assert tensor.item() == 0
    everybody = dist.new_group()
    assert everybody.size() == size
    local = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 else None
    if local is not None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=local)
        assert tensor.item() == 2
    for ranks, message in (
        ([0, 0], "duplicate"),
        ([0, 1, 2, 3], "less or equal"),
        ([0, 7], "Rank 7 is out of range"),
        ([-1], "Rank -1 is out of range"),
    ):
        with pytest.raises(ValueError, match=message):
            dist.new_group(ranks)
    with pytest.raises(ValueError, match="pass backend='host'"):
        dist.new_group(backend="gloo")


@on_ranks(4)
def test_subgroups(dist: Any, rank: int, size: int) -> None:
    own, every = dist.new_subgroups(2)
    assert [dist.get_world_size(pg) for pg in every] == [2 if pg is own else -1 for pg in every]
    assert dist.get_process_group_ranks(own) == [rank // 2 * 2, rank // 2 * 2 + 1]
    own, every = dist.new_subgroups_by_enumeration([[0, 2], [3]])
    assert (own is None) == (rank == 1)
    assert len(every) == 2
    for size_, message in ((3, "must be divisible"), (5, "must not exceed"), (0, "positive")):
        with pytest.raises(ValueError, match=message):
            dist.new_subgroups(size_)
    with pytest.raises(ValueError, match="cannot be empty"):
        dist.new_subgroups_by_enumeration([])
    with pytest.raises(ValueError, match="has appeared in both"):
        dist.new_subgroups_by_enumeration([[0, 1], [1, 2]])


@on_ranks(4, fixture="any_world")
def test_split_group(dist: Any, rank: int, size: int) -> None:
    pg = dist.split_group(split_ranks=[[1, 0], [3]])
    if rank == 2:
        assert pg == dist.GroupMember.NON_GROUP_MEMBER
        return
    members = [0, 1] if rank < 2 else [3]
    assert dist.get_process_group_ranks(pg) == members
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=pg)
    assert tensor.tolist() == [len(members)] * 2
    if rank < 2:
        again = dist.split_group(pg, [[0], [1]])
        assert again.size() == 1
        dist.send(tensor, 1 - rank, group=pg) if rank else dist.recv(tensor, 1 - rank, group=pg)
    other = "nccl" if dist.get_backend() == "host" else "host"
    for ranks, backend, message in (
        ([], None, "cannot be None or empty"),
        ([[0], []], None, "cannot be empty"),
        ([[0, 1, 2, 3, 3]], None, "less or equal to the world_size"),
        ([[0, 1, 1]], None, "duplicate ranks"),
        ([[0, 4]], None, "split_ranks: rank 4 is out of range for a group of size 4"),
        ([[0, -1]], None, "split_ranks: rank -1 is out of range for a group of size 4"),
        ([[0, 1]], other, f"Requested backend '{other}' for device"),
    ):
        with pytest.raises(ValueError, match=message):
            dist.split_group(split_ranks=ranks, backend=backend)


@pytest.mark.parametrize("flags", [0, 1])
@on_ranks(3)
def test_shrink_group(dist: Any, rank: int, size: int, flags: int) -> None:
    other = dist.new_group()
    alone = [dist.new_group([member]) for member in range(size)][rank]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    with pytest.raises(ValueError, match="Cannot shrink a process group with size 1"):
        dist.shrink_group([0], alone)
    with pytest.raises(ValueError, match="Invalid shrink_flags value: 7"):
        dist.shrink_group([1], shrink_flags=7)
    if rank == 1:
        with pytest.raises(RuntimeError, match="in the exclusion list"):
            dist.shrink_group([1])
        return
    for ranks, error, message in (
        ((1,), TypeError, "must be a list"),
        ([], ValueError, "cannot be empty"),
        (["1"], TypeError, "must be integers"),
        ([9], ValueError, "out of bounds"),
        ([1, 1], ValueError, "Duplicate rank 1"),
        ([0, 1, 2], ValueError, "Cannot exclude all"),
    ):
        with pytest.raises(error, match=message):
            dist.shrink_group(ranks)
    with patch.object(dist.ProcessGroup, "open_eagerly", side_effect=AssertionError):
        pg = dist.shrink_group([1], shrink_flags=flags)  # creates the communicator from the old one
    assert pg is dist.group.WORLD
    assert (pg.size(), pg.rank()) == (size - 1, {0: 0, 2: 1}[rank])
    assert dist.get_process_group_ranks(pg) == [0, 2]
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.all_reduce(tensor, group=other)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2


@on_ranks(3)
def test_shrink_group_with_abort_ends_waits(
    dist: Any, rank: int, size: int, tmp_path: Path
) -> None:
    """Rank 1 is alive, but does not participate."""

    def meet(what: str) -> None:
        (tmp_path / f"{what}{rank}").touch()
        for other in (0, 2):
            wait_for(str(tmp_path / f"{what}{other}"))

    dist.all_reduce(torch.ones(1))
    if rank != 1:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        meet("issued")
        dist.shrink_group([1], shrink_flags=1)
        with pytest.raises(dist.DistBackendError, match=r"revoked|shrink"):
            work.wait()
    meet("shrunk")


def _survive(dist: Any, rank: int, size: int) -> float:
    """Rank 1 dies, a thread of the other ranks hangs, and the store no longer works."""
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = None
    with contextlib.suppress(RuntimeError):  # the other survivor may have shrunk already
        work = dist.all_reduce(torch.ones(1000), async_op=True)
    vars(dist.group.WORLD)["store"] = None
    pg = dist.shrink_group([1], shrink_flags=1)
    del work
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert pg is dist.group.WORLD
    value: float = tensor.item()
    return value


def test_shrink_group_without_dead_ranks(launch: Launcher, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    outcomes = launch.outcomes(3, run_in_world, _survive, url, {}, ())
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[0].trace + outcomes[2].trace
        assert outcomes[rank].value == 2.0
    assert outcomes[1].died == "killed by SIGKILL"


@on_ranks(2)
def test_init_again(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    """Destroy and initialize repeatedly, over one store that is never cleared."""
    url = str(tmp_path / "again")

    dist.destroy_process_group()
    store = dist.FileStore(url, size)
    for round_ in range(3):
        dist.init_process_group("host", store=store, rank=rank, world_size=size)
        pg = dist.new_group()
        assert (pg.group_name, dist.get_pg_count()) == ("1", 2)
        tensor = torch.tensor([rank + round_])
        dist.all_reduce(tensor, group=pg)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        assert tensor.item() == 1 + 2 * round_
        dist.monitored_barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()


@on_ranks(2)
def test_beside_torch(dist: Any, rank: int, size: int, tmp_path: Path) -> None:
    """torch.distributed over the same store, at the same time."""
    url = f"file://{tmp_path}/torch"

    assert not torch_dist.is_initialized()
    torch_dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)
    ours, theirs = torch.arange(5) + rank, torch.arange(5) + rank
    dist.all_reduce(ours)
    torch_dist.all_reduce(theirs)
    assert torch.equal(ours, theirs)
    assert dist.group.WORLD is not torch_dist.group.WORLD
    torch_dist.destroy_process_group()
    assert dist.is_initialized()
    dist.barrier()


def test_queries() -> None:
    import pynccl as dist

    assert dist.is_available()
    assert dist.is_backend_available("host")
    assert dist.BackendConfig(dist.Backend("host")).get_device_backend_map() == {"cpu": "host"}
    assert not dist.is_backend_available("gloo")
    gone = ("gloo", "mpi", "ucc", "xccl")
    assert not any(getattr(dist, f"is_{name}_available")() for name in gone)
    assert dist.Backend("HOST") == "host"
    with pytest.raises(ValueError, match="string-ish"):
        dist.Backend(3)
