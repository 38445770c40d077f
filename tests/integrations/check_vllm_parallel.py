"""The backend pynccl of torch.distributed under vLLM's tensor parallel layers, on CPUs."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.scripts import same_as_over_gloo


def test_vllm_tensor_parallel_layers(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "vLLM", env={"VLLM_TARGET_DEVICE": "cpu"})
