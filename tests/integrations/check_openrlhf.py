"""The adapter of OpenRLHF, with the released packages of OpenRLHF and vLLM.

OpenRLHF's WorkerWrap and the import in its worker are the real ones. There is no GPU and no engine
process, so the default process group uses gloo, torch.empty() allocates on the CPU, and the model
runner and the base class of the worker are replaced.
"""

from __future__ import annotations

import threading
import types
from typing import Any

import pytest
import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from openrlhf.utils import distributed_util

from pynccl.weights.adapters import openrlhf
from tests.support.commands import free_port
from tests.weights import models


class _Loader:
    def __init__(self) -> None:
        self.loaded: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.loaded.update({name: tensor.clone() for name, tensor in weights})


def _worker() -> Any:  # noqa: ANN401
    worker: Any = WorkerWrap()
    worker.device = torch.device("cpu")
    worker.model_config = types.SimpleNamespace(dtype=torch.bfloat16)
    worker.model_runner = types.SimpleNamespace(model=_Loader())
    return worker


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
    worker, port = _worker(), free_port()
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
