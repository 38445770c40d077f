"""Proves that the build rejects an interpreter without the global interpreter lock."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.commands import ROOT, run_command
from tests.support.tier import FULL


@pytest.mark.skipif(not FULL, reason="configures a build: PYNCCL_TEST_FULL=1")
def test_the_build_is_refused(tmp_path: Path) -> None:
    """This interpreter, which pretends to have no lock."""
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    pybind11 = pytest.importorskip("pybind11").get_cmake_dir()
    variables = {**sysconfig.get_config_vars(), "Py_GIL_DISABLED": 1}
    (tmp_path / "no_lock.py").write_text(f"build_time_vars = {variables!r}\n")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "_PYTHON_SYSCONFIGDATA_NAME": "no_lock",
    }
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_PREFIX_PATH={pybind11}"]
    command = ["cmake", "-S", str(ROOT), "-B", "build", *options]
    done = run_command(command, tmp_path, env, timeout=120)
    assert done.returncode != 0
    assert "pynccl does not support free-threaded builds of Python" in " ".join(done.stderr.split())
