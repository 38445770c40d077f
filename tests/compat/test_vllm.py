"""Proves that our PyNcclCommunicator returns the results of vLLM's, on CPUs and GPUs.

tests/integrations/check_vllm_wrapper.py compares it with vLLM's class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pynccl import nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

pytest.importorskip("torch")

import torch

from pynccl.compat.vllm import PyNcclCommunicator  # needs torch
from pynccl.memory import torch_empty

TORCH = {"PYTEST_WITH_TORCH": "1"}


class _Stateless:
    """The part of vLLM's StatelessProcessGroup that PyNcclCommunicator uses."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.world_size = rank.rank, rank.nranks

    def broadcast_obj(self, value: object, src: int) -> Any:  # noqa: ANN401
        values = [value]
        torch.distributed.broadcast_object_list(values, src=src)
        return values[0]


@contextmanager
def gloo(rank: Rank) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"{rank.init_method}.gloo", rank=rank.rank, world_size=rank.nranks
    )
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("stateless", [False, True])
@on_ranks(3, env=TORCH)
def test_operations(rank: Rank, stateless: bool) -> None:
    r, n = rank.rank, rank.nranks
    with gloo(rank):
        group = _Stateless(rank) if stateless else torch.distributed.group.WORLD
        comm = PyNcclCommunicator(group, "cpu")
        _check_collectives(comm, r, n)
        _check_messages(comm, r, n)
        comm.destroy()
        assert (comm.available, comm.disabled) == (False, True)
        assert comm.all_reduce(torch.ones(1)) is None


def full(comm: Any, count: int, value: float) -> torch.Tensor:  # noqa: ANN401
    return torch.full((count,), float(value), device=comm.device)


def _check_collectives(comm: PyNcclCommunicator, r: int, n: int) -> None:
    device = comm.device
    assert (comm.rank, comm.world_size, comm.available, comm.disabled) == (r, n, True, False)
    assert comm.nccl_version > 20000
    total = sum(range(1, n + 1))
    x = full(comm, 4, r + 1)
    assert comm.all_reduce(x).tolist() == [total] * 4
    assert x.tolist() == [r + 1] * 4
    y = full(comm, 4, 0)
    assert comm.all_reduce(x, y, torch.distributed.ReduceOp.MAX) is y
    assert y.tolist() == [n] * 4
    check_parts(comm, r, n, comm.all_gatherv, comm.reduce_scatterv)
    out = full(comm, 2, -1)
    comm.reduce(out, full(comm, 2, r + 1), root=1)
    assert out.tolist() == [total if r == 1 else -1] * 2
    sizes = list(range(n))
    rows = torch.zeros((r, 2), device=device)
    everything = torch.arange(2.0 * sum(sizes), device=device).view(-1, 2)
    comm.scatter(rows, everything, sizes, root=0)
    assert torch.equal(rows, everything.split(sizes)[r])
    message = full(comm, 3, r)
    comm.broadcast(message, src=n - 1)
    assert message.tolist() == [n - 1] * 3


def check_parts(
    comm: Any,  # noqa: ANN401 - a communicator for vLLM or SGLang
    r: int,
    n: int,
    all_gather: Callable[..., object],
    reduce_scatter: Callable[..., object],
) -> None:
    """Check gathering and scattering, by these functions if the sizes differ."""
    gathered, part = full(comm, 2 * n, 0), full(comm, 2, 0)
    comm.all_gather(gathered, full(comm, 2, r))
    assert gathered.tolist() == [i // 2 for i in range(2 * n)]
    comm.reduce_scatter(part, torch.arange(2.0 * n, device=comm.device))
    assert part.tolist() == [n * (2 * r), n * (2 * r + 1)]
    sizes = list(range(n))  # the first rank has nothing
    rows, part = (torch.zeros((count, 3), device=comm.device) for count in (sum(sizes), r))
    all_gather(rows, torch.full_like(part, r), sizes=sizes)
    assert rows[:, 0].tolist() == [i for i in sizes for _ in range(i)]
    reduce_scatter(part, torch.ones_like(rows), sizes=sizes)
    assert part.tolist() == [[n] * 3] * r


def _check_messages(comm: PyNcclCommunicator, r: int, n: int) -> None:
    message = full(comm, 3, r).to(torch.float8_e4m3fn)
    if r == 0:
        comm.send(message, 1)
    elif r == 1:
        comm.recv(message, 0)
    assert message.float().tolist() == [0 if r <= 1 else r] * 3
    received = full(comm, 1, -1)
    comm.group_start()
    comm.send(full(comm, 1, r), (r + 1) % n)
    comm.recv(received, (r - 1) % n)
    comm.group_end()
    assert received.item() == (r - 1) % n
    first, second = (torch_empty(comm.comm, 1024, torch.float32) for _ in range(2))
    window = comm.register_comm_window(first)
    other = comm.register_comm_window_raw(second.data_ptr(), 1024)
    assert (window.nbytes, other.nbytes) == (4096, 1024)
    comm.deregister_comm_window(other)
    comm.deregister_comm_window(window)
    assert window.closed
    comm.suspend()
    comm.suspend()
    comm.resume()
    assert comm.all_reduce(full(comm, 1, 1)).item() == n


@on_ranks(2, env=TORCH)
def test_batches_and_wrong_devices(rank: Rank) -> None:
    r, n = rank.rank, rank.nranks
    with gloo(rank):
        comm = PyNcclCommunicator(torch.distributed.group.WORLD, "cpu")
        dist, received = torch.distributed, torch.empty(2)
        comm.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((2,), float(r)), (r + 1) % n),
                dist.P2POp(dist.irecv, received, (r - 1) % n),
            ]
        )
        assert received.tolist() == [(r - 1) % n] * 2
        with pytest.raises(AssertionError, match="is on cpu, but the tensor is on meta"):
            comm.broadcast(torch.empty(1, device="meta"), 0)
        comm.destroy()


@on_ranks(2, env=TORCH)
def test_a_unique_id(rank: Rank) -> None:
    create: Callable[..., PyNcclCommunicator] = PyNcclCommunicator.from_unique_id_bytes
    comm = create(rank.unique_ids[0], rank.rank, rank.nranks, "cpu")
    assert comm.group is None
    assert comm.all_reduce(torch.ones(2)).tolist() == [2, 2]
    comm.destroy()


def test_when_it_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    create = PyNcclCommunicator.from_unique_id_bytes
    alone = create(bytes(128), 0, 1, "cpu")
    assert (alone.available, alone.disabled) == (False, True)
    assert alone.all_reduce(torch.ones(1)) is None
    alone.destroy()
    monkeypatch.setenv("VLLM_DISABLE_PYNCCL", "1")
    assert create(bytes(128), 0, 2, "cpu").disabled
    monkeypatch.delenv("VLLM_DISABLE_PYNCCL")
    with pytest.raises(ValueError, match="rank: 2 is not a rank of world_size=2"):
        create(bytes(128), 2, 2, "cpu")
    monkeypatch.setattr("pynccl.compat.vllm.load", _missing)
    with pytest.raises(nccl.LibraryNotFoundError):
        create(bytes(128), 0, 2, "cpu")


def _missing(provider: str) -> None:
    raise nccl.LibraryNotFoundError(f"{provider} is missing")
