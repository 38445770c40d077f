"""Proves that benchmarks name the engine of torch.distributed that they measure."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed
engines = pytest.importorskip("benchmarks.engines")


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", "cpu:pynccl"])
def test_the_engine_of_a_process_group(backend: str, tmp_path: Path) -> None:
    if "pynccl" in backend:
        import pynccl.c10d  # noqa: F401 - it registers the backend
        from pynccl.c10d.build import build

        build()
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        assert engines.engine(None, torch.device("cpu")) == backend.rpartition(":")[2]
    finally:
        dist.destroy_process_group()
