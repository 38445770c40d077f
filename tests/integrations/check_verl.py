"""The adapter of verl, with the released package.

verl's registry, its import of the backend's module, its configuration, CheckpointEngineManager and
the methods of CheckpointEngineWorker are the real ones. No Ray cluster runs, so these are replaced:
ray.get(), RayWorkerGroup, whose workers are threads of this process, the creation of a worker, the
actors' worker, and the server adapter that passes weights to an inference engine.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from verl.checkpoint_engine import base
from verl.workers.config import CheckpointEngineConfig

from tests.weights import models

_SOON = 60  # seconds; the sessions' timeout is longer


class _Server:
    """A server adapter that stores the weights."""

    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.fails = False

    async def update_weights(self, weights: Any, wire_format: str, **_: object) -> None:  # noqa: ANN401
        assert wire_format == "named_tensors"
        self.loaded = {}
        async for name, tensor in weights:
            if self.fails:
                raise ValueError("the engine cannot load")
            self.loaded[name] = tensor.clone()


class _Actor:
    def __init__(self, engine: Any) -> None:  # noqa: ANN401
        self.checkpoint_engine = engine
        self.tensors: dict[str, torch.Tensor] = {}

    def execute_checkpoint_engine(self, method: str, **options: Any) -> Any:  # noqa: ANN401
        return getattr(self.checkpoint_engine, method)(**options)

    async def update_weights(self, global_steps: int | None = None, mode: str = "") -> None:
        assert mode == "pynccl"
        await self.checkpoint_engine.send_weights(iter(self.tensors.items()), global_steps)


class _Group:
    """A RayWorkerGroup that runs its calls on threads."""

    def __init__(self, worker_handles: list[Any], ray_cls_with_init: object = None) -> None:
        self.workers = worker_handles
        self.world_size = len(worker_handles)
        self._pool = ThreadPoolExecutor(len(worker_handles))

    def execute_checkpoint_engine(self, method: list[str], **lists: list[Any]) -> list[Future[Any]]:
        return [
            self._call(
                worker.execute_checkpoint_engine,
                method[rank],
                **{name: values[rank] for name, values in lists.items()},
            )
            for rank, worker in enumerate(self.workers)
        ]

    def update_weights(self, **options: Any) -> list[Future[Any]]:  # noqa: ANN401
        return [self._call(worker.update_weights, **options) for worker in self.workers]

    def _call(self, function: Any, *args: Any, **options: Any) -> Future[Any]:  # noqa: ANN401
        def run() -> Any:  # noqa: ANN401
            result = function(*args, **options)
            return asyncio.run(result) if inspect.iscoroutine(result) else result

        return self._pool.submit(run)


class _Replica:
    def __init__(self, worker: Any) -> None:  # noqa: ANN401
        self.workers = [worker]

    async def _done(self, **_: object) -> None: ...

    abort_all_requests = release_kv_cache = resume_kv_cache = resume_generation = _done


def _engine(is_master: bool = False) -> Any:  # noqa: ANN401
    return base.CheckpointEngineRegistry.new(
        "pynccl", bucket_size=4096, is_master=is_master, host="127.0.0.1"
    )


def _replica() -> _Replica:
    worker = object.__new__(base.CheckpointEngineWorker)
    worker.checkpoint_engine, worker.server_adapter = _engine(), _Server()
    return _Replica(worker)


class _World:
    def __init__(self) -> None:
        config = CheckpointEngineConfig(
            backend="pynccl", custom_backend_module="pynccl.weights.adapters.verl"
        )
        self.manager = base.CheckpointEngineManager(config, None, [])
        self.actors = [_Actor(_engine(is_master=rank == 0)) for rank in range(2)]
        self.manager.actor_wg = _Group(self.actors)
        self.manager.add_replicas([_replica() for _ in range(2)])

    def update(self, version: int) -> None:
        for actor in self.actors:
            actor.tensors = models.make(version)
        self.manager.update_weights(global_steps=version)

    @property
    def workers(self) -> list[Any]:
        return [worker for replica in self.manager.replicas for worker in replica.workers]

    def has(self, version: int) -> bool:
        expected = models.make(version)
        return all(models.equal(worker.server_adapter.loaded, expected) for worker in self.workers)

    def session(self) -> str:
        return str(self.actors[0].checkpoint_engine.prepare()["session"])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[_World]:
    monkeypatch.setattr(base.ray, "get", lambda futures: [future.result() for future in futures])
    monkeypatch.setattr(base, "RayWorkerGroup", _Group)
    made = _World()
    yield made
    for worker in [*made.actors, *made.workers]:
        worker.checkpoint_engine.close()


def test_verl_two_versions(world: _World) -> None:
    sessions = set()
    for version in (1, 2):
        world.update(version)
        assert world.has(version)
        sessions.add(world.session())
    assert len(sessions) == 1


def test_verl_replica_that_leaves(world: _World) -> None:
    world.update(1)
    gone = world.manager.replicas[1]
    world.manager.remove_replicas([gone])  # its process keeps running
    began = time.monotonic()
    world.update(2)
    assert time.monotonic() - began < _SOON
    assert world.has(2)
    world.manager.add_replicas([gone])
    world.update(3)
    assert world.has(3)


def test_verl_engine_that_raises(world: _World) -> None:
    world.update(1)
    for worker in world.workers:
        worker.server_adapter.fails = True
    began = time.monotonic()
    with pytest.raises((ValueError, RuntimeError)):
        world.update(2)
    assert time.monotonic() - began < _SOON
    for worker in world.workers:
        worker.server_adapter.fails = False
    world.update(3)
    assert world.has(3)
