"""Proves that the entry point by which torch finds the backend registers it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support import warm
from tests.support.commands import run_command

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
    project = Path(__file__).parents[2] / "pyproject.toml"
    command = [sys.executable, "-c", _REGISTER, str(project)]
    done = run_command(command, project.parent, os.environ, timeout=60, popen=warm.Popen)
    assert done.returncode == 0, done.stderr
