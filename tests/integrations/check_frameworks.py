"""The backend pynccl of torch.distributed under released frameworks, unmodified, on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.scripts import same_as_over_gloo


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed_zero_1_to_3(tmp_path: Path, stage: str) -> None:
    same_as_over_gloo(tmp_path, "DeepSpeed", stage, env={"DS_ACCELERATOR": "cpu"})


def test_transformers_trainer(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "transformers")


def test_accelerate_gradient_accumulation(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "accelerate")


def test_pytorch_lightning_trainer(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "Lightning")


def test_megatron_core_tensor_parallel_layers(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "Megatron-core")


def test_torchft_two_replica_groups(tmp_path: Path) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2)
    same_as_over_gloo(tmp_path, "torchft", env={"TORCHFT_LIGHTHOUSE": server.address()})
    server.shutdown()


def test_torchtitan_sharded_data(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "torchtitan")
