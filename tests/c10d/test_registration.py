"""Proves that the entry point by which torch finds the backend registers it."""

from __future__ import annotations

from tests.support import warm
from tests.support.commands import ROOT, run_python

_REGISTER = """
import sys, tomllib
from importlib.metadata import EntryPoint
import torch.distributed as dist

group = "torch.distributed.backends"
with open(sys.argv[1], "rb") as file:
    entries = tomllib.load(file)["project"]["entry-points"][group]
assert "pynccl" not in dist.Backend.backend_list
EntryPoint("pynccl", entries["pynccl"], group).load()()
assert dist.Backend.backend_list.count("pynccl") == 1
assert dist.Backend.backend_capability["pynccl"] == ["cpu", "cuda"]
"""


def test_entry_point() -> None:
    done = run_python("-c", _REGISTER, str(ROOT / "pyproject.toml"), popen=warm.Popen)
    assert done.returncode == 0, done.stderr
