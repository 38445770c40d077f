"""The adapter of OpenRLHF, with the released packages of OpenRLHF and vLLM.

OpenRLHF's WorkerWrap, the import in its worker, vLLM's Worker and its check of worker extensions
are the real ones. There is no GPU and no engine process, so the default process group uses gloo,
torch.empty() allocates on the CPU, and the model runner and the base class of the worker are
replaced.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from openrlhf.utils import distributed_util
from vllm.v1.worker.gpu_worker import Worker

from pynccl.weights import WeightSender
from pynccl.weights.adapters import openrlhf
from tests.support.commands import free_port
from tests.weights import models
from tests.weights.peers import KEY


class _Loader:
    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}
        self.fails = False

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        if self.fails:
            raise ValueError("the engine cannot load")
        self.loaded.update({name: tensor.clone() for name, tensor in weights})


def _worker(extension: type) -> Any:  # noqa: ANN401
    worker: Any = extension()
    worker.device = torch.device("cpu")
    worker.model_config = types.SimpleNamespace(dtype=torch.bfloat16)
    worker.model_runner = types.SimpleNamespace(model=_Loader())
    return worker


def test_openrlhf_worker_extension_without_conflicts() -> None:
    names = [name for name in dir(openrlhf.SessionWorker) if not name.startswith("__")]
    assert not [name for name in names if hasattr(Worker, name)]


def test_openrlhf_two_versions_parameter_by_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_util, "stateless_init_process_group", None)
    openrlhf.install()
    empty = torch.empty

    def on_cpu(*args: Any, device: object = None, **options: Any) -> torch.Tensor:  # noqa: ANN401
        del device
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", on_cpu)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1
    )
    worker, port = _worker(WorkerWrap), free_port()
    spec = {"a": ((100, 3), torch.bfloat16), "b": ((), torch.bfloat16)}
    versions = [models.make(version, spec) for version in (1, 2)]

    def work() -> None:
        worker.init_process_group("127.0.0.1", port, 1, 2, "openrlhf")
        for _ in versions:
            for name, (shape, dtype) in spec.items():
                worker.update_weight(name, dtype, shape)
            loaded.append(dict(worker.model_runner.model.loaded))

    loaded: list[dict[str, torch.Tensor]] = []
    thread = threading.Thread(target=work)
    thread.start()
    group = distributed_util.stateless_init_process_group("127.0.0.1", port, 0, 2, "cpu")
    for version in versions:
        for tensor in version.values():
            group.broadcast(tensor, src=0)
    thread.join(60)
    group.close()
    torch.distributed.destroy_process_group()
    assert [models.equal(*pair) for pair in zip(loaded, versions, strict=True)] == [True, True]


def test_openrlhf_sessions() -> None:
    """Two versions, an engine that raises, and a replica that leaves."""
    workers = [_worker(openrlhf.SessionWorker) for _ in range(2)]
    errors: list[Exception] = []

    def update(worker: Any) -> None:  # noqa: ANN401
        try:
            worker.pynccl_update(60)
        except Exception as error:
            errors.append(error)

    with WeightSender("127.0.0.1:0", receivers=2, key=KEY) as sender:
        for worker in workers:
            worker.pynccl_join(sender.address, key=KEY)

        def send(version: int) -> Any:  # noqa: ANN401
            threads = [threading.Thread(target=update, args=(worker,)) for worker in workers]
            for thread in threads:
                thread.start()
            report = sender.send(models.make(version))
            for thread in threads:
                thread.join(60)
            return report

        for version in (1, 2):
            send(version)
            expected = models.make(version)
            assert all(models.equal(one.model_runner.model.loaded, expected) for one in workers)
        workers[0].model_runner.model.fails = True
        send(3)
        assert [str(error) for error in errors] == ["the engine cannot load"]
        workers.pop(0).pynccl_leave()
        assert len(send(4).receivers) == 1
        assert models.equal(workers[0].model_runner.model.loaded, models.make(4))
        workers[0].pynccl_leave()
