"""Proves that the adapters have what the projects' classes ask for, and that what was sent is
loaded. The classes below have the methods of those that do not install here.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from pynccl.weights import WeightSender
from pynccl.weights.adapters import openrlhf, parts, sglang, trl, verl, vllm
from pynccl.weights.adapters.beside import beside
from pynccl.weights.errors import WeightsError
from pynccl.weights.report import Report
from tests.weights import models
from tests.weights.peers import KEY
from tests.weights.sessions import MemoryStore


class WeightTransferEngine(ABC):
    """The abstract methods of vllm.distributed.weight_transfer.base.WeightTransferEngine."""

    update_info_cls: Any

    def __init__(self, model: object) -> None:
        self.model = model

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))

    @abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...  # noqa: ANN401

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...  # noqa: ANN401

    @abstractmethod
    def shutdown(self) -> None: ...

    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...  # noqa: ANN401


class Model:
    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.loaded = {name: tensor.clone() for name, tensor in weights}


@pytest.mark.parametrize("older", [False, True])
def test_vllm(monkeypatch: pytest.MonkeyPatch, older: bool) -> None:
    registered: dict[str, Any] = {}
    base = types.ModuleType("base")
    base.WeightTransferEngine = WeightTransferEngine  # type: ignore[attr-defined]
    factory = types.ModuleType("factory")
    factory.WeightTransferEngineFactory = types.SimpleNamespace(  # type: ignore[attr-defined]
        register_engine=registered.__setitem__
    )
    monkeypatch.setitem(sys.modules, "vllm", None)
    vllm.plugin()  # without vLLM there is nothing to register with
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.base", base)
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.factory", factory)
    vllm.plugin()
    engine_class = registered["pynccl"]

    store = MemoryStore()
    expected = models.make(1)
    model, engines, ended = Model(), [], []

    def work() -> None:
        engine = engine_class(model)
        engines.append(engine)
        engine.init_transfer_engine(vllm.InitInfo(store, timeout=20, key=KEY))
        engine.start_weight_update()
        if older:
            engine.receive_weights(vllm.UpdateInfo(), model.load_weights)
        else:
            engine.update_weights({"timeout": 20.0})
        engine.finish_weight_update()
        receiver = engine._receiver
        engine.shutdown()
        with pytest.raises(WeightsError, match="closed"):
            receiver.receive(20)
        ended.append(True)

    worker = threading.Thread(target=work)
    worker.start()
    with WeightSender(store, timeout=20, key=KEY) as sender:
        report = engine_class.trainer_send_weights(
            iter(expected.items()), {"sender": sender, "version": 7}
        )
        worker.join(20)
        assert not worker.is_alive()
    assert report.version == 7
    assert ended == [True]
    assert models.equal(model.loaded, expected)


class CheckpointEngine(ABC):
    """The abstract methods of verl.checkpoint_engine.base.CheckpointEngine, of verl 0.9."""

    wire_format = "named_tensors"

    @abstractmethod
    def prepare(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> Any: ...  # noqa: ANN401

    @abstractmethod
    def init_process_group(self, **kwargs: Any) -> None: ...  # noqa: ANN401

    @abstractmethod
    def finalize(self) -> None: ...

    @abstractmethod
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None: ...  # noqa: ANN401

    @abstractmethod
    def receive_weights(self, global_steps: int | None = None) -> Any: ...  # noqa: ANN401


class _Verl:
    """What verl's manager does with the engines of actors and rollout workers."""

    def __init__(self, cls: Any, actors: int, rollouts: int) -> None:  # noqa: ANN401
        options = {"bucket_size": 4096, "timeout": 20, "host": "127.0.0.1"}
        self._cls = cls
        self.actors = [cls(is_master=rank == 0, **options) for rank in range(actors)]
        self.rollouts = [cls(**options) for _ in range(rollouts)]

    def update(self, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        engines = [*self.actors, *self.rollouts]
        metadata = [engine.prepare() for engine in engines]
        topology = self._cls.build_topology(len(self.actors), len(self.rollouts), metadata)
        loaded: list[dict[str, torch.Tensor]] = [{} for _ in engines]
        made: list[list[str]] = [[] for _ in engines]
        errors: list[BaseException] = []

        def weights(place: int) -> Any:  # noqa: ANN401
            for name, tensor in tensors.items():
                made[place].append(name)
                yield name, tensor

        async def receive(place: int) -> None:
            async for name, tensor in engines[place].receive_weights():
                loaded[place][name] = tensor.clone()

        def work(place: int, arguments: dict[str, Any]) -> None:
            try:
                engines[place].init_process_group(**arguments)
                is_actor = place < len(self.actors)
                asyncio.run(
                    engines[place].send_weights(weights(place)) if is_actor else receive(place)
                )
                engines[place].finalize()
            except BaseException as error:
                errors.append(error)

        arguments = [
            {name: values[place] for name, values in lists.items()}
            for lists, count in zip(topology, (len(self.actors), len(self.rollouts)), strict=True)
            for place in range(count)
        ]
        threads = [
            threading.Thread(target=work, args=(place, one)) for place, one in enumerate(arguments)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "an engine hangs"
        assert errors == []
        assert all(names == list(tensors) for names in made[: len(self.actors)])
        return loaded[len(self.actors) :]


def test_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, Any] = {}

    def register(name: str) -> Any:  # noqa: ANN401
        return lambda cls: registered.setdefault(name, cls)

    base = types.ModuleType("base")
    base.CheckpointEngine = CheckpointEngine  # type: ignore[attr-defined]
    base.CheckpointEngineRegistry = types.SimpleNamespace(register=register)  # type: ignore[attr-defined]
    for name in ("verl", "verl.checkpoint_engine"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.checkpoint_engine.base", base)
    verl.register()

    world = _Verl(registered["pynccl"], actors=2, rollouts=2)
    opened = set()
    for step in (1, 2):
        expected = models.make(step)
        for loaded in world.update(expected):
            assert list(loaded) == list(expected)
            assert models.equal(loaded, expected)
        sessions = {engine.prepare()["session"] for engine in world.rollouts}
        opened |= sessions
    assert len(opened) == 1  # the second update has used the session of the first one
    # Another worker comes: the session is another one for all.
    world.rollouts.append(type(world.rollouts[0])(4096, timeout=20, host="127.0.0.1"))
    expected = models.make(3)
    for loaded in world.update(expected):
        assert models.equal(loaded, expected)
    assert {engine.prepare()["session"] for engine in world.rollouts}.isdisjoint(sessions)
    # One leaves, but its process lives: the others do not wait for it.
    gone = world.rollouts.pop()
    for loaded in world.update(expected):
        assert models.equal(loaded, expected)
    gone.close()
    for engine in [*world.actors, *world.rollouts]:
        engine.close()


def test_verls_own_class() -> None:
    base = pytest.importorskip("verl.checkpoint_engine.base")
    verl.engine_class(base.CheckpointEngine)(bucket_size=4096).finalize()


def test_parts_that_are_not_all_taken_end_the_session() -> None:
    class Receiver:
        def __init__(self) -> None:
            self.closed = threading.Event()
            self.parts = 0
            self.tensors: dict[str, torch.Tensor] = {}

        def receive(self) -> None:
            self.parts += 1
            if self.parts > 1:
                assert self.closed.wait(20)
            self.tensors = {"a": torch.ones(1), parts._LAST: torch.tensor([0])}

        def close(self) -> None:
            self.closed.set()

    async def take_one(receiver: Any) -> None:  # noqa: ANN401
        items: Any = parts.receive_parts(receiver)
        assert (await anext(items))[0] == "a"
        await items.aclose()

    receiver = Receiver()
    asyncio.run(take_one(receiver))
    assert receiver.closed.is_set()


def test_the_error_of_an_engine_is_raised() -> None:
    report = Report(1, 0, 0.0, (), (), ())

    def fail() -> None:
        raise RuntimeError("the engine failed")

    assert beside(lambda: None, lambda: report) is report
    with pytest.raises(RuntimeError, match="the engine failed"):
        beside(fail, lambda: report)


class _SGLang:
    """sglang.Engine.update_weights_from_tensor(), with schedulers that are threads."""

    def __init__(self, schedulers: int) -> None:
        self.models = [Model() for _ in range(schedulers)]

    def update_weights_from_tensor(
        self, named_tensors: list[tuple[str, torch.Tensor]], load_format: str | None = None
    ) -> None:
        assert load_format == "pynccl.weights.adapters.sglang.load"
        for model in self.models:
            sglang.load(model, named_tensors)


def test_sglang() -> None:
    engine = _SGLang(1)
    with WeightSender("127.0.0.1:0", timeout=20, key=KEY) as sender:
        for step in (1, 2):
            expected = models.make(step)
            report = sglang.update(engine, sender, expected)
            assert report.version == step
            assert models.equal(engine.models[0].loaded, expected)
        request = sglang.request(sender.address, sender.key)
    with pytest.raises(WeightsError, match="closed"):
        sglang.load(engine.models[0], request)
    assert not sglang._receivers  # the next request joins again
    with pytest.raises(ValueError, match=r"expected those of request\(\), got \['weight'\]"):
        sglang.load(engine.models[0], [("weight", torch.ones(1))])


class _Server:
    """TRL's client of a vLLM server whose one worker is in this process."""

    def __init__(self) -> None:
        self.model = Model()
        self._engine = vllm.engine_class(WeightTransferEngine)(self.model)
        self.calls: list[str] = []

    def wait_for_server_ready(self) -> None:
        self.calls.append("ready")

    def get_world_size(self) -> int:
        return 1

    def init_weight_transfer_engine(self, init_info: dict[str, Any], timeout: int = 0) -> None:
        self._engine.init_transfer_engine(vllm.InitInfo(**init_info))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return lambda timeout=0: self.calls.append(name)

    def update_weights(self, update_info: dict[str, Any], timeout: int = 0) -> None:
        self._engine.update_weights(update_info)


def test_trl() -> None:
    server = _Server()
    transfer = trl.WeightTransfer(server, timeout=20, host="127.0.0.1")
    with pytest.raises(RuntimeError, match="init_weight_transfer"):
        transfer.send_weights(iter(()))
    transfer.init_weight_transfer()
    for step in (1, 2):  # the second one knows the metadata
        expected = models.make(step)
        transfer.pause()
        transfer.send_weights(iter(expected.items()))
        transfer.resume()
        assert models.equal(server.model.loaded, expected)
        assert transfer.report is not None
        assert transfer.report.version == step
    transfer.destroy()
    update = ["pause", "start_weight_update", "finish_weight_update", "resume"]
    assert server.calls == ["ready", *update, *update]


def test_openrlhf_makes_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameter by parameter, as its trainer and its WorkerWrap call the group."""
    module = types.ModuleType("distributed_util")
    for name in ("openrlhf", "openrlhf.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "openrlhf.utils.distributed_util", module)
    openrlhf.install()
    expected = {"a": torch.rand(1000), "b": torch.rand(3, 5).to(torch.bfloat16)}
    received: list[dict[str, torch.Tensor]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def join(rank: int) -> Any:  # noqa: ANN401
        make: Any = module.stateless_init_process_group
        return make("127.0.0.1", port, rank, 3, torch.device("cpu"))

    def work(rank: int) -> None:
        group = join(rank)
        weights = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
        for weight in weights.values():
            group.broadcast(weight, src=0)
        received.append(weights)
        group.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    group = join(0)
    for tensor in expected.values():
        group.broadcast(tensor, src=0)
    for thread in threads:
        thread.join(30)
    group.close()
    assert len(received) == 2
    assert all(models.equal(weights, expected) for weights in received)


def test_openrlhf_sessions() -> None:
    class Worker(openrlhf.SessionWorker):
        def __init__(self) -> None:
            self.loaded = Model()
            model = types.SimpleNamespace(load_weights=self.loaded.load_weights)
            self.model_runner = types.SimpleNamespace(model=model)

    worker = Worker()
    with pytest.raises(RuntimeError, match="pynccl_join"):
        worker.pynccl_update()
    expected = models.make(1)
    with WeightSender("127.0.0.1:0", timeout=20, key=KEY) as sender:
        versions: list[int] = []

        def work() -> None:
            worker.pynccl_join(sender.address, timeout=20, key=KEY)
            versions.append(worker.pynccl_update(20))
            receiver = worker._pynccl_receiver
            assert receiver is not None
            worker.pynccl_leave()
            with pytest.raises(WeightsError, match="closed"):
                receiver.receive(20)
            versions.append(-1)

        thread = threading.Thread(target=work)
        thread.start()
        sender.send(expected, version=5)
        thread.join(20)
    assert versions == [5, -1]
    assert models.equal(worker.loaded.loaded, expected)
