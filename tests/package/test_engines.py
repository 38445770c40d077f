"""Proves that benchmarks name the engine of torch.distributed that they measure, and say of every
other backend that is to be compared whether it can be, for each version of torch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dist = torch.distributed
engines = pytest.importorskip("benchmarks.engines")

_OLD, _NEW = "ProcessGroupNCCL", "ProcessGroupNCCL2"
_2_15 = {"nccl": _NEW, "nccl-legacy": _OLD, "nccl2": _NEW, "nccl4py": "NCCL4PyBackend"}


def _reasons(version: str, known: dict[str, str], *packages: str) -> dict[str, str]:
    found = engines.candidates("cuda", version, known, packages)
    return {candidate.backend: candidate.reason for candidate in found}


def test_torch_2_15() -> None:
    assert _reasons("2.15.0", _2_15, "nccl4py") == {"nccl-legacy": "", "nccl4py": "", "pynccl": ""}
    assert "pip install nccl4py" in _reasons("2.15.0", _2_15)["nccl4py"]
    # TORCH_DIST_USE_NCCL2=0
    reasons = _reasons("2.15.0", {**_2_15, "nccl": _OLD})
    assert reasons["nccl-legacy"] == "it is ProcessGroupNCCL, as nccl in torch 2.15.0"
    assert reasons["nccl2"] == ""


def test_cpus() -> None:
    found = engines.candidates("cpu", "2.15.0", _2_15, ["nccl4py"])
    assert [one.backend for one in found if not one.reason] == ["pynccl"]
    assert engines.Candidate("nccl4py", "it is for GPUs") in found


def test_the_engines_of_this_torch() -> None:
    version = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    if not dist.is_nccl_available():
        expected = {}
    elif version >= (2, 15):
        expected = _2_15
    elif version >= (2, 14):
        expected = {"nccl": _OLD, "nccl-legacy": _OLD, "nccl2": _NEW}
    else:
        expected = {"nccl": _OLD}
    assert engines.registry() == expected


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
