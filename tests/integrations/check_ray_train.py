"""The backend pynccl of torch.distributed under Ray Train, on CPUs."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.scripts import same_as_over_gloo


def test_ray_train(tmp_path: Path) -> None:
    same_as_over_gloo(tmp_path, "Ray Train", launcher=())
