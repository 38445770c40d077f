"""The plugin activates the double in every process, even if there is another driver.

The double's tests do not run without it, and docs/status.md lists the tests that it skips. Ranks
that share a GPU get few CTAs by default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles import plugin
from tests.support import gpu
from tests.support.commands import ROOT as _ROOT
from tests.support.commands import run_command, run_python

_MOST = 0.1  # of the tests marked gpu may need a real GPU
_LOOK = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
print(hasattr(library, "cuda_double_calls"))
from pynccl import libraries, nccl
print(libraries.load("cuda").driver_path, len(libraries.load("cuda").device_names()))
"""


def test_it_wins_over_another_driver(tmp_path: Path) -> None:
    """The dynamic linker finds another libcuda.so.1 first, as on a machine with a GPU."""
    other = tmp_path / "libcuda.so.1"
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", str(other)],
        check=True, timeout=60,
    )  # fmt: skip
    paths = os.pathsep.join([str(tmp_path), os.environ["LD_LIBRARY_PATH"]])
    has, path, devices = run_python("-c", _LOOK, LD_LIBRARY_PATH=paths).stdout.split()
    assert (has, devices) == ("True", "4")
    assert Path(path).resolve().is_relative_to(os.environ["CUDA_DOUBLE_LIBRARIES"])


def test_the_folder_is_refused_without_it() -> None:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_DOUBLE")}
    command = [sys.executable, "-m", "pytest", "-q", "tests/doubles/test_plugin.py"]
    done = run_command(command, _ROOT, variables, timeout=60)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "python -m pytest -p tests.doubles.plugin tests/doubles" in done.stdout + done.stderr


def test_the_status_lists_what_needs_a_gpu(request: pytest.FixtureRequest) -> None:
    """For the files collected in this session."""
    collected = request.config.stash[plugin.COLLECTED]
    files = {name.partition("::")[0] for name in collected}
    text = (_ROOT / "docs" / "status.md").read_text()
    rows = re.findall(r"^\| `(tests/[^`]+)` \| (.+) \|$", text, re.MULTILINE)
    listed = {name: reason for name, reason in rows if name.partition("::")[0] in files}
    needed = {name: reason for name, reason in collected.items() if reason}
    assert listed == needed
    if _collects_all_tests(request.config):
        assert len(rows) == len(needed) <= _MOST * len(collected)


def _collects_all_tests(config: pytest.Config) -> bool:
    """Whether the session was started for the whole folder of tests."""
    arguments = [(config.invocation_params.dir / argument).resolve() for argument in config.args]
    return any((_ROOT / "tests").is_relative_to(argument) for argument in arguments)


def test_ranks_that_share_a_gpu_have_few_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_MAX_CTAS", raising=False)
    assert gpu.environment(gpu.count(), 0) == {}
    assert gpu.environment(gpu.count() + 1, 0)["NCCL_MAX_CTAS"] == "4"
    monkeypatch.setenv("NCCL_MAX_CTAS", "2")  # the user's choice is kept
    assert "NCCL_MAX_CTAS" not in gpu.environment(gpu.count() + 1, 0)
