"""vLLM's weight transfer engine over pynccl.weights.

    vllm serve ... --weight-transfer-config '{"backend": "pynccl"}'

    # in the trainer; client and source are vLLM's
    from pynccl.weights.adapters import vllm, vllm_engine

    vllm.register()
    info = vllm_engine.TrainerInitInfo(rank=0, receivers=tensor_parallel_size)
    trainer = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)
    trainer.send_weights()  # after each step

pynccl is a vLLM plugin, and vLLM's processes register the engines. Each worker receives whole
tensors in the checkpoint's format. Once a version is verified, it is loaded as vLLM reloads a
checkpoint: layers are processed again (quantization, MLA), in the same memory. A failed transfer
leaves the model unchanged.

Workers get the session's key from PYNCCL_WEIGHTS_KEY, or together with the address. Written for
vLLM 0.33. docs/integrations.md lists the tested versions.
"""

from __future__ import annotations

import contextlib
import importlib
import os

__all__ = ["plugin", "register"]

_ENGINES = "pynccl.weights.adapters.vllm_engine"


def plugin() -> None:
    """The plugin's entry point in each vLLM process: register the engines if vLLM supports them.

    If :func:`pynccl.weights.adapters.openrlhf.install` was called in the parent process, it is
    called here as well.
    """
    with contextlib.suppress(ImportError, AttributeError):
        register()
    if os.environ.get("PYNCCL_OPENRLHF") == "1":
        from pynccl.weights.adapters import openrlhf

        openrlhf.install()


def register(name: str = "pynccl") -> None:
    """Register the engines with vLLM. Calling it again has no effect.

    Args:
        name: name of the engine in the workers' configuration.

    Raises:
        ImportError: vLLM is not installed, or does not support weight transfer engines.
    """
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    with contextlib.suppress(ValueError):  # it is registered
        factory.WeightTransferEngineFactory.register_engine(name, _ENGINES, "WeightTransferEngine")
    with contextlib.suppress(ValueError):
        factory.WeightTransferTrainerFactory.register_engine(
            "pynccl", _ENGINES, "TrainerWeightTransferEngine"
        )
