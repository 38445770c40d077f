"""Proves that the ranks of a Ray group meet through its store regardless of remains of an earlier
group there, and the communicator of a compiled graph.

tests/integrations/check_ray.py runs a cluster.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

pytest.importorskip("ray", reason="Ray has no wheel for this Python")
pytest.importorskip("torch")

import ray
import torch
from ray.exceptions import RayChannelError
from ray.experimental import internal_kv
from ray.experimental.util.types import ReduceOp

from pynccl import nccl
from pynccl.compat import ray as compat
from tests.support.blocking import in_threads, together


class _Store:
    """Ray's key-value store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def put(self, key: str, value: str | bytes) -> None:
        self.values[key] = value.encode() if isinstance(value, str) else value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> _Store:
    made = _Store()
    monkeypatch.setattr(internal_kv, "_internal_kv_get", made.values.get)
    monkeypatch.setattr(internal_kv, "_internal_kv_put", made.put)
    monkeypatch.setattr(internal_kv, "_internal_kv_del", made.delete)
    monkeypatch.setattr(ray, "get_gpu_ids", list)
    monkeypatch.setenv("PYNCCL_TIMEOUT", "20")
    return made


def test_ranks_meet_and_leave_nothing(store: _Store) -> None:
    for _ in range(2):
        comms = in_threads(*(partial(compat._create, "group", rank, 3) for rank in range(3)))
        assert [comm.rank for comm in comms] == [0, 1, 2]
        assert not store.values
        for comm in comms:
            comm.close()


def test_the_request_of_a_process_that_died(store: _Store) -> None:
    """The request is answered, and the replacement rank still joins."""
    store.put("pynccl/group/1", "died")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compat._create, "group", 0, 2)
        while "pynccl/group/died" not in store.values:
            time.sleep(0.01)
        second = pool.submit(compat._create, "group", 1, 2)
        comms = [first.result(), second.result()]
    assert [comm.nranks for comm in comms] == [2, 2]
    assert set(store.values) == {"pynccl/group/died"}
    for comm in comms:
        comm.close()


def test_missing_ranks(store: _Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYNCCL_TIMEOUT", "0.5")
    first, last = together(
        lambda: compat._create("group", 0, 3), lambda: compat._create("other", 2, 3)
    )
    assert (first.missing_ranks, last.missing_ranks) == ([1, 2], [0])
    assert str(first) == "pynccl/group: ranks [1, 2] did not join within 0.5 s"
    assert not store.values


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_a_wrong_time_limit(store: _Store, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PYNCCL_TIMEOUT", value)
    with pytest.raises(ValueError, match=f"PYNCCL_TIMEOUT: '{value}' is not a non-negative"):
        compat._create("group", 0, 2)


def _empty(shape: tuple[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _graphs(nranks: int, *, streams: bool = False) -> list[compat.GraphCommunicator]:
    comm_id = compat.GraphCommunicator.generate_communicator_id()

    def create(rank: int) -> compat.GraphCommunicator:
        stream = nccl.Stream() if streams else None
        return compat.GraphCommunicator(nranks, comm_id, rank, ["a", "b"], stream)

    return in_threads(*(partial(create, rank) for rank in range(nranks)))


@pytest.mark.parametrize("streams", [False, True])
def test_a_compiled_graph(monkeypatch: pytest.MonkeyPatch, streams: bool) -> None:
    """Ray runs GraphCommunicator, its class for GPUs, on GPUs only."""
    monkeypatch.setenv("PYNCCL_PROVIDER", "host")
    graphs = _graphs(2, streams=streams)
    assert [graph.get_self_rank() for graph in graphs] == [0, 1]
    assert graphs[0].get_world_size() == 2

    inputs = [torch.arange(4.0) + rank for rank in range(2)]  # until the sends are done

    def run(rank: int) -> list[list[float]]:
        graph, x, results = graphs[rank], inputs[rank], []
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG):
            out = torch.empty(4)
            graph.allreduce(x, out, op)
            results.append(out.tolist())
        gathered, part = torch.empty(8), torch.empty(2)
        graph.allgather(x, gathered)
        graph.reducescatter(x, part, ReduceOp.SUM)
        results += [gathered.tolist(), part.tolist()]
        if rank == 0:
            graph.send(x, 1)
        else:
            results.append(graph.recv((4,), torch.float32, 0, _empty).tolist())
        return results

    first, second = in_threads(lambda: run(0), lambda: run(1))
    assert first == [
        [1, 3, 5, 7], [0, 2, 6, 12], [1, 2, 3, 4], [0, 1, 2, 3], [0.5, 1.5, 2.5, 3.5],
        [0, 1, 2, 3, 1, 2, 3, 4], [1, 3],
    ]  # fmt: skip
    assert second == [*first[:-1], [5, 7], [0, 1, 2, 3]]
    for graph in graphs:
        graph.destroy()
    with pytest.raises(RayChannelError, match="was destroyed"):
        graphs[0].send(torch.ones(1), 1)


def test_a_receive_ends_when_the_graph_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYNCCL_PROVIDER", "host")
    graphs = _graphs(2)

    def destroy() -> None:
        time.sleep(0.3)
        graphs[0].destroy()

    error, _ = together(lambda: graphs[0].recv((4,), torch.float32, 1, _empty), destroy)
    assert isinstance(error, RayChannelError)
    graphs[1].destroy()


def test_a_compiled_graph_with_a_missing_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYNCCL_PROVIDER", "host")
    monkeypatch.setenv("PYNCCL_TIMEOUT", "0.5")
    comm_id = compat.GraphCommunicator.generate_communicator_id()
    began = time.monotonic()
    with pytest.raises(nccl.NcclTimeoutError):
        compat.GraphCommunicator(2, comm_id, 0, ["a", "b"], None)
    assert time.monotonic() - began < 60


def test_no_time_limit_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYNCCL_TIMEOUT", "0")
    assert compat._limit() == 180


def test_one_tensor_per_process() -> None:
    with pytest.raises(ValueError, match="got 2; pynccl supports one GPU per process"):
        compat._one([1, 2])


def test_registering_twice() -> None:
    compat.register()
