"""Tests of the adapters without the projects that they support.

The classes below stand for those of the projects. `make test-integrations` runs released packages.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from pynccl.weights import WeightReceiver, WeightSender
from pynccl.weights.adapters import openrlhf, sglang, trl, verl, vllm
from pynccl.weights.adapters.beside import beside
from pynccl.weights.errors import PeerLostError, SessionClosedError, WeightsError
from pynccl.weights.report import Report
from pynccl.weights.wire import Link
from tests.support.commands import free_port
from tests.weights import models
from tests.weights.peers import KEY
from tests.weights.sessions import together


class Model:
    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.steps: list[str] = []

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.steps.append("load")
        self.loaded = {name: tensor.clone() for name, tensor in weights}


class _Engine:
    """The methods of vLLM's WeightTransferEngine that the adapter uses."""

    update_info_cls: Any

    def __init__(self, model: Model) -> None:
        self.model, self.model_config = model, "its configuration"

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))  # type: ignore[attr-defined]


class _Trainer:
    def __init__(self, *, client: object, source: object, is_sender: bool, rank: int = 0) -> None:
        self.client, self.source, self.is_sender, self.rank = client, source, is_sender, rank


@dataclass
class _TrainerInfo:
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class _Factory:
    def __init__(self) -> None:
        self.engines: dict[str, tuple[str, str]] = {}

    def register_engine(self, name: str, module: str, class_name: str) -> None:
        if name in self.engines:
            raise ValueError(f"{name} is already registered")
        self.engines[name] = module, class_name


@pytest.fixture
def vllm_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The adapter's module, over stand-ins for vLLM's modules."""

    def module(name: str, **content: object) -> None:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(content)

    transfer, loader = "vllm.distributed.weight_transfer", "vllm.model_executor.model_loader"
    for name in ("vllm", "vllm.distributed", "vllm.model_executor", loader):
        module(name)
    base = types.SimpleNamespace(
        WeightTransferEngine=_Engine,
        TrainerWeightTransferEngine=_Trainer,
        TrainerInitInfo=_TrainerInfo,
        WeightTransferInitInfo=type("InitInfo", (), {}),
        WeightTransferUpdateInfo=type("UpdateInfo", (), {}),
    )
    module(transfer, base=base)
    module(
        f"{transfer}.factory",
        WeightTransferEngineFactory=_Factory(),
        WeightTransferTrainerFactory=_Factory(),
    )
    module(f"{loader}.mtp_validation", disable_mtp_completeness_check=contextlib.nullcontext)
    module(
        f"{loader}.reload",
        initialize_layerwise_reload=lambda model: model.steps.append("initialize"),
        finalize_layerwise_reload=lambda model, config: model.steps.append(f"finalize, {config}"),
    )
    name = "pynccl.weights.adapters.vllm_engine"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    del sys.modules[name]


class _Server:
    """TRL's or vLLM's client of a vLLM server whose one worker is in this process."""

    def __init__(self, engines: Any) -> None:  # noqa: ANN401
        self.model = Model()
        self._info = engines.InitInfo
        self.engine = engines.WeightTransferEngine(self.model)
        self.calls: list[str] = []

    def wait_for_server_ready(self) -> None:
        self.calls.append("ready")

    def get_world_size(self) -> int:
        return 1

    def init_weight_transfer_engine(self, init_info: dict[str, Any], timeout: int = 0) -> None:
        self.engine.init_transfer_engine(self._info(**init_info))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return lambda timeout=0: self.calls.append(name)

    def update_weights(self, update_info: dict[str, Any], timeout: int = 0) -> None:
        self.engine.update_weights(update_info)

    def finish_weight_update(self, timeout: int = 0) -> None:
        self.calls.append("finish_weight_update")
        self.engine.finish_weight_update()


def test_vllm_registers_its_engines_once(
    monkeypatch: pytest.MonkeyPatch,
    vllm_engine: Any,  # noqa: ANN401
) -> None:
    for _ in range(2):  # vLLM may load its plugins again
        vllm.plugin()
    factory: Any = sys.modules["vllm.distributed.weight_transfer.factory"]
    for engines in (factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory):
        module, name = engines.engines["pynccl"]
        assert hasattr(importlib.import_module(module), name)
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.factory", None)
    vllm.plugin()  # without vLLM there is nothing to register with


class _Source:
    """A WeightSource of vLLM."""

    def __init__(self, tensors: dict[str, torch.Tensor], owners: Any = None) -> None:  # noqa: ANN401
        self.tensors, self.owners = tensors, owners
        self.passes = 0

    @property
    def metadata(self) -> list[Any]:
        return [
            types.SimpleNamespace(
                name=name, dtype=one.dtype, shape=tuple(one.shape), owners=self.owners
            )
            for name, one in self.tensors.items()
        ]

    def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.passes += 1
        yield from self.tensors.items()


def test_vllm(vllm_engine: Any) -> None:  # noqa: ANN401
    server, source = _Server(vllm_engine), _Source({})

    def init(rank: int, source: _Source | None) -> Any:  # noqa: ANN401
        info = vllm_engine.TrainerInitInfo(rank=rank, receivers=1, timeout=20, host="127.0.0.1")
        return vllm_engine.TrainerWeightTransferEngine.trainer_init(
            info, client=server, source=source
        )

    with pytest.raises(ValueError, match="WeightSource"):
        init(0, None)
    with pytest.raises(ValueError, match="does not own 'a'"):
        init(0, _Source({"a": torch.ones(1)}, owners=(1, 2)))
    other = init(1, source)
    other.send_weights()
    assert source.passes == 1  # a rank that does not send takes part in producing the tensors
    trainer = init(0, source)
    for step in (1, 2):
        source.tensors = models.make(step)
        trainer.send_weights()
        assert models.equal(server.model.loaded, source.tensors)
        assert trainer.report.version == step
    update = ["initialize", "load", "finalize, its configuration"]
    assert server.model.steps == [*update, *update]
    # A failed version does not change the model.
    _, error = together(trainer._sender.abort, lambda: server.engine.receive_weights(_update(20)))
    assert isinstance(error, PeerLostError)
    assert server.model.steps == [*update, *update]
    closed: list[bool] = []
    trainer._sender.close()
    trainer._sender = types.SimpleNamespace(close=lambda: closed.append(True))
    trainer.shutdown()
    trainer.shutdown()
    assert closed == [True]
    with pytest.raises(RuntimeError, match="shut down"):
        trainer.send_weights()
    server.engine.shutdown()
    with pytest.raises(RuntimeError, match="init_transfer_engine"):
        server.engine.receive_weights(_update(20))


def _update(timeout: float) -> Any:  # noqa: ANN401
    return types.SimpleNamespace(timeout=timeout)


class CheckpointEngine:
    """Stands for verl.checkpoint_engine.base.CheckpointEngine, which is abstract."""


class _Verl:
    """Calls the engines of actors and rollout workers as verl's manager does."""

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

        def weights(place: int) -> Any:  # noqa: ANN401
            for name, tensor in tensors.items():
                made[place].append(name)
                yield name, tensor

        async def receive(place: int) -> None:
            async for name, tensor in engines[place].receive_weights():
                loaded[place][name] = tensor.clone()

        def work(place: int, arguments: dict[str, Any]) -> None:
            engines[place].init_process_group(**arguments)
            is_actor = place < len(self.actors)
            asyncio.run(engines[place].send_weights(weights(place)) if is_actor else receive(place))
            engines[place].finalize()

        arguments = [
            {name: values[place] for name, values in lists.items()}
            for lists, count in zip(topology, (len(self.actors), len(self.rollouts)), strict=True)
            for place in range(count)
        ]
        results = together(*(partial(work, place, one) for place, one in enumerate(arguments)))
        assert results == [None] * len(engines)
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
    assert len(opened) == 1  # the second update reused the session of the first
    # A new worker joins, so all members get a new session.
    world.rollouts.append(type(world.rollouts[0])(4096, timeout=20, host="127.0.0.1"))
    expected = models.make(3)
    for loaded in world.update(expected):
        assert models.equal(loaded, expected)
    assert {engine.prepare()["session"] for engine in world.rollouts}.isdisjoint(sessions)
    # A worker leaves while its process lives. The others do not wait for it.
    gone = world.rollouts.pop()
    for loaded in world.update(expected):
        assert models.equal(loaded, expected)
    gone.close()
    for engine in [*world.actors, *world.rollouts]:
        engine.close()


def test_verl_leaves_a_session_that_fails() -> None:
    engine = verl.engine_class(CheckpointEngine)(4096, True, timeout=20, host="127.0.0.1")
    engine.init_process_group(0, f"{engine.prepare()['address']}/id", 1, KEY)

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.ones(1)
        raise RuntimeError("no tensors")

    with pytest.raises(RuntimeError, match="no tensors"):
        asyncio.run(engine.send_weights(weights()))
    assert engine.prepare()["session"][0] is None


def test_verl_reserves_the_port_of_a_session() -> None:
    engine = verl.engine_class(CheckpointEngine)(4096, True, timeout=20, host="127.0.0.1")
    host, port = engine.prepare()["address"].split(":")
    with socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        engine.close()
        other.bind((host, int(port)))


def test_parts_are_as_full_as_possible() -> None:
    parts: list[list[str]] = []
    sender: Any = types.SimpleNamespace(send=lambda part: parts.append(list(part)))
    weights = [(name, torch.ones(2, dtype=torch.uint8)) for name in "abcde"]
    asyncio.run(verl._send_parts(sender, iter([*weights, ("f", torch.ones(9))]), 4))
    assert parts == [[*names, verl._LAST] for names in ("ab", "cd", "e", "f")]


def test_unfinished_parts_end_the_session() -> None:
    class Receiver:
        def __init__(self) -> None:
            self.closed = threading.Event()
            self.parts = 0
            self.tensors: dict[str, torch.Tensor] = {}

        def receive(self) -> None:
            self.parts += 1
            if self.parts > 1:
                assert self.closed.wait(20)
            self.tensors = {"a": torch.ones(1), verl._LAST: torch.tensor([0])}

        def close(self) -> None:
            self.closed.set()

    async def take_one(receiver: Any) -> None:  # noqa: ANN401
        items: Any = verl._receive_parts(receiver)
        assert (await anext(items))[0] == "a"
        await items.aclose()

    receiver = Receiver()
    asyncio.run(take_one(receiver))
    assert receiver.closed.is_set()


def _nothing() -> None: ...


def _failing(text: str) -> Callable[[], Any]:
    def fail() -> None:
        raise RuntimeError(text)

    return fail


@pytest.mark.parametrize("asks_here", [False, True])
@pytest.mark.parametrize("has_receiver", [False, True])
def test_the_error_of_an_engine_ends_the_transfer(asks_here: bool, has_receiver: bool) -> None:
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(WeightSender("127.0.0.1:0", key=KEY))
        if has_receiver:  # it does not receive
            stack.enter_context(WeightReceiver(sender.address, key=KEY, library="torch"))
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="the engine failed") as caught:
            beside(
                sender,
                _failing("the engine failed"),
                lambda: sender.send(models.make(1)),
                _failing("the update did not begin"),
                asks_here=asks_here,
            )
        assert time.monotonic() - began < 60  # not the session's timeout of 300 s
        assert isinstance(caught.value.__cause__, PeerLostError)


def test_an_abort_while_receivers_are_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender then finds a lost receiver, and none is left."""
    unread = Link.unread
    with (
        WeightSender("127.0.0.1:0", key=KEY) as sender,
        WeightReceiver(sender.address, key=KEY, library="torch"),
    ):

        def abort(link: Link) -> Any:  # noqa: ANN401
            monkeypatch.setattr(Link, "unread", unread)
            sender.abort()
            return link.unread()

        monkeypatch.setattr(Link, "unread", abort)
        with pytest.raises(PeerLostError, match="the session was aborted"):
            sender.send(models.make(1))


@pytest.mark.parametrize("asks_here", [False, True])
def test_errors_beside_a_transfer(asks_here: bool) -> None:
    report = Report(1, 0, 0.0, (), ())
    with WeightSender("127.0.0.1:0", key=KEY) as sender:

        def run(
            ask: Callable[[], object], send: Callable[[], Report], finish: Callable[[], object]
        ) -> Report:
            return beside(sender, ask, send, finish, asks_here=asks_here)

        def finish() -> None:
            finishing.append(threading.current_thread())
            raise RuntimeError("not finished")

        finishing: list[threading.Thread] = []
        assert run(_nothing, lambda: report, _nothing) is report
        with pytest.raises(RuntimeError, match="not finished"):
            run(_nothing, lambda: report, finish)
        # The engine fails because the trainer's tensors do.
        with pytest.raises(RuntimeError, match="no tensors"):
            run(_nothing, _failing("no tensors"), finish)
        here = threading.current_thread()
        assert [thread is here for thread in finishing] == [True, asks_here]


def test_an_engine_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even after the abort. Its answer, its end and the update have one time limit."""
    monkeypatch.setattr("pynccl.weights.adapters.beside._GRACE", 2.0)
    ended = threading.Event()
    began = time.monotonic()
    with (
        WeightSender("127.0.0.1:0", key=KEY) as sender,
        pytest.raises(RuntimeError, match="no tensors"),
    ):
        beside(sender, ended.wait, _failing("no tensors"), ended.wait)
    ended.set()
    assert time.monotonic() - began < 5.9


class _SGLang:
    """The methods of sglang.Engine that update weights, with schedulers that are threads."""

    def __init__(self, schedulers: int) -> None:
        self.models = [Model() for _ in range(schedulers)]
        self.is_open = False
        self.refusal = ""
        self.thread = threading.current_thread()

    def begin_weight_update(self) -> tuple[bool, str]:
        self.is_open, was_open = True, self.is_open
        return not was_open, "it is open" if was_open else ""

    def end_weight_update(self) -> tuple[bool, str]:
        self.is_open = False
        return True, ""

    def update_weights_from_tensor(
        self, named_tensors: list[tuple[str, torch.Tensor]], load_format: str | None = None
    ) -> tuple[bool, str]:
        assert self.is_open
        assert threading.current_thread() is self.thread  # it runs its event loop
        assert load_format == "pynccl.weights.adapters.sglang.load"
        if self.refusal:
            return False, self.refusal
        for model in self.models:
            sglang.load(model, named_tensors)
        return True, ""


def test_sglang() -> None:
    engine = _SGLang(1)
    with WeightSender("127.0.0.1:0", timeout=20, key=KEY) as sender:
        for step in (1, 2):
            expected = models.make(step)
            report = sglang.update(engine, sender, expected)
            assert report.version == step
            assert models.equal(engine.models[0].loaded, expected)
        engine.begin_weight_update()
        with pytest.raises(RuntimeError, match="SGLang: it is open"):
            sglang.update(engine, sender, expected)
        engine.end_weight_update()
        request = sglang.request(sender.address, sender.key)
    with pytest.raises(WeightsError, match="closed"):
        sglang.load(engine.models[0], request)
    assert not sglang._receivers  # the next request joins again
    with pytest.raises(ValueError, match=r"expected those of request\(\), got \['weight'\]"):
        sglang.load(engine.models[0], [("weight", torch.ones(1))])


def test_sglang_leaves_an_earlier_session() -> None:
    engine = _SGLang(1)
    with (
        WeightSender("127.0.0.1:0", timeout=20, key=KEY) as first,
        WeightSender("127.0.0.1:0", timeout=20, key=KEY) as second,
    ):
        for sender in (first, second):
            sglang.update(engine, sender, models.make(1))
        (receiver,) = sglang._receivers.values()
    receiver.close()
    sglang._receivers.clear()


def test_sglang_ends_without_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender fails before a version begins, for which the engine waits."""
    monkeypatch.setattr("pynccl.weights.adapters.beside._GRACE", 0.5)
    with (
        WeightSender("127.0.0.1:0", timeout=20, key=KEY) as sender,
        pytest.raises(TypeError, match="expected a tensor, got int"),
    ):
        sglang.update(_SGLang(1), sender, {"a": 3})
    assert not sglang._receivers


def test_sglang_refuses() -> None:
    engine = _SGLang(1)
    engine.refusal = "not now"
    with (
        WeightSender("127.0.0.1:0", key=KEY) as sender,
        pytest.raises(RuntimeError, match="SGLang: not now"),
    ):
        sglang.update(engine, sender, models.make(1))
    assert not engine.is_open
    with pytest.raises(RuntimeError, match="SGLang: no"):
        sglang._check({"success": False, "message": "no"})  # its HTTP server


def test_trl(vllm_engine: Any) -> None:  # noqa: ANN401
    server = _Server(vllm_engine)
    transfer = trl.WeightTransfer(server, timeout=300, host="127.0.0.1")
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
    update = ["pause", "start_weight_update", "finish_weight_update", "resume"]
    assert server.calls == ["ready", *update, *update]
    transfer.destroy()
    with pytest.raises(SessionClosedError):
        server.engine.receive_weights(_update(20))
    transfer.destroy()
    server.engine.shutdown()


def test_openrlhf_makes_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameter by parameter, as its trainer and its WorkerWrap call the group."""
    module = types.ModuleType("distributed_util")
    for name in ("openrlhf", "openrlhf.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "openrlhf.utils.distributed_util", module)
    monkeypatch.delenv("PYNCCL_OPENRLHF", raising=False)
    openrlhf.install()
    monkeypatch.delattr(module, "stateless_init_process_group")
    vllm.plugin()  # a process that vLLM starts inherits the environment
    expected = {"a": torch.rand(1000), "b": torch.rand(3, 5).to(torch.bfloat16)}
    port = free_port()

    def join(rank: int) -> Any:  # noqa: ANN401
        make: Any = module.stateless_init_process_group
        return make("127.0.0.1", port, rank, 3, torch.device("cpu"))

    def work(rank: int) -> dict[str, torch.Tensor]:
        group = join(rank)
        weights = models.blank(expected) if rank else expected
        for weight in weights.values():
            group.broadcast(weight, src=0)
        group.close()
        return weights

    for weights in together(*(partial(work, rank) for rank in range(3))):
        assert models.equal(weights, expected)
