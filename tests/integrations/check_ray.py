"""pynccl.compat.ray, with the released package and a cluster on this machine.

Nothing of Ray is replaced. The actors of the compiled graph come from Ray's own tests, which its
wheel contains. In compiled graphs only collectives run, because Ray does not support CPU actors
that send tensors over the communicator of an accelerator.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.dag import InputNode, MultiOutputNode
from ray.experimental.collective import (
    allgather,
    allreduce,
    create_collective_group,
    destroy_collective_group,
    reducescatter,
)
from ray.experimental.collective.conftest import CPUTorchTensorWorker
from ray.util import collective

from pynccl.compat.ray import CPUGraphCommunicator

_SOON = 60  # seconds; the timeout of operations is longer
_LIMIT = 100


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=4,
        num_gpus=0,
        include_dashboard=False,
        runtime_env={
            "worker_process_setup_hook": "pynccl.compat.ray.register",
            "env_vars": {"PYNCCL_TIMEOUT": str(_LIMIT)},
        },
    )
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class _Member:
    """A member of a group of ray.util.collective."""

    def join(self, rank: int, nranks: int, limit: float = _LIMIT) -> None:
        import os

        os.environ["PYNCCL_TIMEOUT"] = str(limit)
        collective.init_collective_group(nranks, rank, backend="pynccl", group_name="default")

    def leave(self) -> None:
        collective.destroy_collective_group("default")

    def all_reduce(self) -> list[float]:
        x = torch.ones(4)
        collective.allreduce(x)
        return x.tolist()  # type: ignore[no-any-return]

    def run(self) -> dict[str, Any]:
        rank, n = collective.get_rank(), collective.get_collective_group_size()
        results: dict[str, Any] = {}
        for library, ones in (("torch", torch.ones), ("numpy", np.ones)):
            x: Any = ones(4) * (rank + 1)
            collective.allreduce(x, op=collective.types.ReduceOp.MAX)
            parts = [ones(2) * 0 for _ in range(n)]
            collective.allgather(parts, ones(2) * rank)
            out = ones(2) * 0
            collective.reducescatter(out, [ones(2) * root for root in range(n)])
            root: Any = ones(1) * rank
            collective.broadcast(root, src_rank=n - 1)
            total: Any = ones(1) * rank
            collective.reduce(total, dst_rank=0)
            message: Any = ones(1) * rank
            if rank == 0:
                collective.send(message, 1)
            elif rank == 1:
                collective.recv(message, 0)
            collective.barrier()
            values = [x, *parts, out, root, total, message]
            results[library] = [value.tolist() for value in values]
        return results


def _members(count: int) -> list[Any]:
    return [_Member.remote() for _ in range(count)]


def _call(members: list[Any], method: str, *args: object) -> list[Any]:
    results = [getattr(member, method).remote(*args) for member in members]
    return list(ray.get(results, timeout=_LIMIT))


def _join(members: list[Any]) -> None:
    count = len(members)
    ray.get([m.join.remote(rank, count) for rank, m in enumerate(members)], timeout=_LIMIT)


def test_ray_collectives() -> None:
    members = _members(3)
    _join(members)
    for rank, results in enumerate(_call(members, "run")):
        parts = [[0, 0], [1, 1], [2, 2]]
        total = [3] if rank == 0 else [rank]
        message = [0] if rank <= 1 else [2]
        expected = [[3] * 4, *parts, [3 * rank] * 2, [2], total, message]
        assert results == {"torch": expected, "numpy": expected}
    _call(members, "leave")


def test_ray_declared_group() -> None:
    members = _members(2)
    collective.create_collective_group(members, 2, [1, 0], backend="pynccl", group_name="default")
    assert _call(members, "all_reduce") == [[2.0] * 4] * 2
    _call(members, "leave")


def test_ray_missing_actor() -> None:
    members = _members(2)
    began = time.monotonic()
    with pytest.raises(Exception, match=r"default: ranks \[1\] did not join within 2 s"):
        ray.get(members[0].join.remote(0, 2, 2.0))
    with pytest.raises(Exception, match="default: rank 0 did not join within 2 s"):
        ray.get(members[1].join.remote(1, 2, 2.0))
    assert time.monotonic() - began < _SOON
    _join(members)  # with the same name
    assert _call(members, "all_reduce") == [[2.0] * 4] * 2


def test_ray_actor_that_dies() -> None:
    members = _members(2)
    _join(members)
    waits = members[0].all_reduce.remote()
    time.sleep(0.5)
    began = time.monotonic()
    ray.kill(members[1])
    with pytest.raises(Exception, match="NcclRemoteError"):
        ray.get(waits)
    assert time.monotonic() - began < _SOON


def test_ray_compiled_graph() -> None:
    workers = [CPUTorchTensorWorker.options(num_cpus=0).remote() for _ in range(2)]
    group = CPUGraphCommunicator(2, workers)
    with InputNode() as size:
        tensors = [worker.return_tensor.bind(size) for worker in workers]
        results = [
            result
            for operation in (allreduce, allgather, reducescatter)
            for result in operation.bind(tensors, transport=group)
        ]
        received = [
            worker.recv_tensors.bind(*results[rank::2]) for rank, worker in enumerate(workers)
        ]
        graph = MultiOutputNode(received).experimental_compile()
    for size in (4, 8):
        for values in ray.get(graph.execute(size), timeout=_LIMIT):
            reduced, gathered, part = values
            assert torch.equal(reduced, torch.full((size,), 2.0))
            assert torch.equal(gathered, torch.ones(2 * size))
            assert torch.equal(part, torch.full((size // 2,), 2.0))
    graph.teardown()


@ray.remote(num_cpus=0)
class _Holder:
    @ray.method(tensor_transport="pynccl")
    def make(self, count: int) -> list[torch.Tensor]:
        return [torch.arange(float(count)), torch.ones(3, dtype=torch.int64)]

    def total(self, tensors: list[torch.Tensor]) -> float:
        return sum(float(tensor.sum()) for tensor in tensors)

    def answer(self) -> int:
        return 42


def test_ray_tensor_transport() -> None:
    holders = [_Holder.remote() for _ in range(2)]
    group = create_collective_group(holders, backend="pynccl")
    for count in (10, 20):
        tensors = holders[0].make.remote(count)
        expected = count * (count - 1) / 2 + 3
        assert ray.get(holders[1].total.remote(tensors), timeout=_LIMIT) == expected
        assert ray.get(holders[0].total.remote(tensors), timeout=_LIMIT) == expected
    destroy_collective_group(group)


def test_ray_transfer_that_fails() -> None:
    """The receiver gets an error. Ray does not kill it, because the group can be aborted."""
    holders = [_Holder.remote() for _ in range(2)]
    group = create_collective_group(holders, backend="pynccl")
    tensors = holders[0].make.remote(10)
    assert ray.get(holders[0].total.remote(tensors), timeout=_LIMIT) == 48
    ray.kill(holders[0])
    with pytest.raises(ray.exceptions.RayActorError):  # it is dead, not just about to be
        ray.get(holders[0].answer.remote(), timeout=_SOON)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(holders[1].total.remote(tensors), timeout=_SOON)
    assert ray.get(holders[1].answer.remote(), timeout=_SOON) == 42
    with contextlib.suppress(ValueError):  # Ray may have destroyed it already
        destroy_collective_group(group)
