"""The adapters of vLLM and TRL, with the released packages.

vLLM's factories, configuration, linear layers, weight loaders, layerwise reload, worker methods,
AsyncLLM methods, HTTP routes, client and ModuleSource are the real ones, and so is TRL's client.
There is no GPU and no engine process, so these are replaced: torch.accelerator.synchronize(), the
creation of a worker, its model runner, the configuration of the model, the calls from AsyncLLM to
its workers, which are threads of this process, and the route /health. The model with two processed
layers is defined here.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import uvicorn
from accelerate import PartialState
from fastapi import FastAPI
from requests import HTTPError
from trl.experimental.async_grpo.vllm_client import VLLMClient
from vllm import distributed, plugins
from vllm.config import DeviceConfig, VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.base import ModuleSource
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
from vllm.distributed.weight_transfer.factory import (
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.entrypoints.rl.online.api_router import router
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    ReplicatedLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.worker.gpu_worker import Worker

from pynccl.weights import PeerLostError
from pynccl.weights.adapters import trl, vllm_engine
from tests.support.commands import free_port

_SIZE = 8
_SOON = 60  # seconds; the sessions' timeouts are longer


class _Transposed(UnquantizedLinearMethod):
    """Stores the negated transpose of the weight, as a kernel might require."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.weight = torch.nn.Parameter(-layer.weight.data.t().contiguous(), requires_grad=False)

    def apply(self, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:  # noqa: ANN401
        return -(x @ layer.weight)


class _Quantization(QuantizationConfig):
    def get_name(self) -> str:
        return "transposed"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> _Quantization:
        return cls()

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:  # noqa: ANN401
        return _Transposed()


class _Attention(torch.nn.Module, AttentionLayerBase):
    """Derives a weight from another layer's after loading, as MLA does."""

    def __init__(self, projection: torch.nn.Module) -> None:
        super().__init__()
        self._projection = [projection]  # not a submodule

    def get_attn_backend(self) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> None:
        return None

    def process_weights_after_loading(self, dtype: torch.dtype) -> None:
        self.derived = (2 * self._projection[0].weight.data).to(dtype)


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": False, "params_dtype": torch.float32}
        self.plain = ColumnParallelLinear(_SIZE, _SIZE, prefix="plain", **options)
        self.packed = ReplicatedLinear(
            _SIZE, _SIZE, quant_config=_Quantization(), prefix="packed", **options
        )
        self.attention = _Attention(self.plain)
        self.fails = False

    def load_weights(self, weights: Any) -> set[str]:  # noqa: ANN401
        if self.fails:
            raise ValueError("the engine cannot load")
        return AutoWeightsLoader(self).load_weights(weights)

    def state(self) -> list[torch.Tensor]:
        """The tensors that inference reads: the results of both layers, and the derived weight."""
        x = torch.eye(_SIZE)
        return [self.plain(x)[0].t(), self.packed(x)[0].t(), self.attention.derived / 2]


def _trained(version: int) -> torch.nn.Module:
    """A trainer's model."""
    torch.manual_seed(version)
    model = torch.nn.Module()
    for name in ("plain", "packed"):
        setattr(model, name, torch.nn.Linear(_SIZE, _SIZE, bias=False))
    return model


def _has(model: _Model, trained: Any) -> bool:  # noqa: ANN401
    plain, packed = trained.plain.weight, trained.packed.weight
    expected = [plain, packed, plain]
    return all(torch.equal(a, b) for a, b in zip(model.state(), expected, strict=True))


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    plugins.load_general_plugins()  # the installed plugin registers the engines
    plugins.plugins_loaded = False
    plugins.load_general_plugins()  # vLLM may load it again
    made = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        weight_transfer_config=WeightTransferConfig(backend="pynccl"),
    )
    with set_current_vllm_config(made):
        distributed.init_distributed_environment(
            1, 0, f"tcp://127.0.0.1:{free_port()}", local_rank=0, backend="gloo"
        )
        distributed.initialize_model_parallel(1)
    made.model_config = types.SimpleNamespace(
        dtype=torch.float32, quantization=None, word_embeddings_untied_by_checkpoint=False
    )
    yield made
    distributed.destroy_model_parallel()
    distributed.destroy_distributed_environment()


def _worker(config: VllmConfig) -> Any:  # noqa: ANN401
    with set_current_vllm_config(config):
        model = _Model()
        record_metadata_for_reloading(model)
        model.load_weights(_trained(0).named_parameters())
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
    worker: Any = object.__new__(Worker)
    worker.vllm_config = config
    worker.rank = 0
    worker._weight_update_active = worker._weight_update_is_draft = False
    worker.model_runner = types.SimpleNamespace(get_model=lambda: model, reset_lora_state=int)
    worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
        config.weight_transfer_config, config, torch.device("cpu"), model
    )
    return worker


class _Engine:
    init_weight_transfer_engine = AsyncLLM.init_weight_transfer_engine
    start_weight_update = AsyncLLM.start_weight_update
    update_weights = AsyncLLM.update_weights
    finish_weight_update = AsyncLLM.finish_weight_update

    def __init__(self, workers: list[Any]) -> None:
        self.workers = workers
        self._threads = {id(worker): ThreadPoolExecutor(1) for worker in workers}
        parallel = types.SimpleNamespace(world_size_across_dp=len(workers))
        self.vllm_config = types.SimpleNamespace(parallel_config=parallel)
        self.steps: list[str] = []

    async def collective_rpc(self, method: str, kwargs: dict[str, Any] | None = None) -> None:
        loop = asyncio.get_running_loop()  # a worker handles one request at a time
        await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._threads[id(worker)],
                    functools.partial(getattr(worker, method), **(kwargs or {})),
                )
                for worker in self.workers
            )
        )

    async def pause_generation(self, **_: object) -> None:
        self.steps.append("pause")

    async def resume_generation(self) -> None:
        self.steps.append("resume")


@pytest.fixture
def engine(config: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Engine]:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: None)
    made = _Engine([_worker(config) for _ in range(2)])
    yield made
    for worker in made.workers:
        worker.weight_transfer_engine.shutdown()


@pytest.fixture
def url(engine: _Engine) -> Iterator[str]:
    """The address of a server with vLLM's routes."""
    app = FastAPI()
    app.include_router(router)
    app.get("/health")(lambda: {})
    app.state.engine_client = engine
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


def _models(engine: _Engine) -> list[_Model]:
    return [worker.model_runner.get_model() for worker in engine.workers]


def _trainer(url: str, model: torch.nn.Module) -> Any:  # noqa: ANN401
    info = vllm_engine.TrainerInitInfo(rank=0, receivers=2, host="127.0.0.1")
    return WeightTransferTrainerFactory.trainer_init(
        info, client=HTTPVLLMWeightSyncClient(url), source=ModuleSource(model)
    )


def _copy(trained: torch.nn.Module, version: int) -> torch.nn.Module:
    trained.load_state_dict(_trained(version).state_dict())
    return trained


def test_vllm_two_versions_of_processed_layers(engine: _Engine, url: str) -> None:
    trained = _trained(0)
    assert all(_has(model, trained) for model in _models(engine))
    addresses = [one.data_ptr() for model in _models(engine) for one in model.parameters()]
    trainer = _trainer(url, trained)
    for version in (1, 2):
        _copy(trained, version)
        trainer.send_weights()
        assert trainer.report.version == version
        assert all(_has(model, trained) for model in _models(engine))
    assert addresses == [one.data_ptr() for model in _models(engine) for one in model.parameters()]
    trainer.shutdown()


def test_vllm_engine_that_raises(engine: _Engine, url: str) -> None:
    trained = _trained(1)
    trainer = _trainer(url, trained)
    # Before it receives: the trainer does not wait, and the models are unchanged.
    for worker in engine.workers:
        worker.update_weights = _refuse
    began = time.monotonic()
    with pytest.raises(HTTPError, match="500") as caught:
        trainer.send_weights()
    assert time.monotonic() - began < _SOON
    assert isinstance(caught.value.__cause__, PeerLostError)
    assert all(_has(model, _trained(0)) for model in _models(engine))
    trainer.shutdown()
    # While it loads.
    for worker in engine.workers:
        del worker.update_weights
        worker.weight_transfer_engine.model.fails = True
    trainer = _trainer(url, trained)
    with pytest.raises(HTTPError, match="500"):
        trainer.send_weights()
    trainer.shutdown()
    # The next version repairs it.
    for worker in engine.workers:
        worker.weight_transfer_engine.model.fails = False
    trainer = _trainer(url, trained)
    trainer.send_weights()
    assert all(_has(model, trained) for model in _models(engine))
    trainer.shutdown()


def _refuse(update_info: object) -> None:
    raise RuntimeError("the engine refuses")


def test_vllm_replica_that_leaves(engine: _Engine, url: str) -> None:
    trained = _trained(1)
    trainer = _trainer(url, trained)
    trainer.send_weights()
    engine.workers.pop().weight_transfer_engine.shutdown()
    _copy(trained, 2)
    trainer.send_weights()
    assert len(trainer.report.receivers) == 1
    assert _has(_models(engine)[0], trained)
    trainer.shutdown()


def _transfer(url: str) -> trl.WeightTransfer:
    PartialState(cpu=True)  # TRL's trainer does it
    transfer = trl.WeightTransfer(VLLMClient(url), host="127.0.0.1")
    transfer.init_weight_transfer()
    return transfer


def test_trl_two_versions_and_an_engine_that_raises(engine: _Engine, url: str) -> None:
    transfer = _transfer(url)
    for version in (1, 2):
        trained = _trained(version)
        transfer.pause()
        transfer.send_weights(trained.named_parameters())
        transfer.resume()
        assert all(_has(model, trained) for model in _models(engine))
    assert engine.steps == ["pause", "resume"] * 2
    for worker in engine.workers:
        worker.update_weights = _refuse
    began = time.monotonic()
    with pytest.raises(Exception, match="500") as caught:
        transfer.send_weights(_trained(3).named_parameters())
    assert time.monotonic() - began < _SOON
    assert isinstance(caught.value.__cause__, PeerLostError)
    transfer.destroy()


def test_trl_replica_that_leaves(engine: _Engine, url: str) -> None:
    transfer = _transfer(url)
    transfer.send_weights(_trained(1).named_parameters())
    engine.workers.pop().weight_transfer_engine.shutdown()
    transfer.send_weights(_trained(2).named_parameters())
    assert transfer.report is not None
    assert len(transfer.report.receivers) == 1
    assert _has(_models(engine)[0], _trained(2))
    transfer.destroy()
