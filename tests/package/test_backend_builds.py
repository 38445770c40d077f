"""Proves that a backend built elsewhere works without a compiler, that the error without one names
the ways to get it, and that the backend uses the C++ library of torch; in the full tests also that
a Python without a GIL is refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import ROOT, run_command
from tests.support.tier import FULL

pytest.importorskip("torch")

_CHECK = """
import sys
import pynccl.c10d, torch, torch.distributed as dist
dist.init_process_group("pynccl", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor.tolist() == [1] * 4
dist.destroy_process_group()
"""


def _check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Use the backend of the cache in a folder without a compiler."""
    (folder / "none").mkdir()
    env = {
        **os.environ,
        "PATH": str(folder / "none"),
        "CXX": "no-compiler",  # one may stand beside the interpreter
        "PYNCCL_CACHE": str(folder / "cache"),
    }
    command = [sys.executable, "-c", _CHECK, str(folder / "store")]
    return run_command(command, ROOT, env, timeout=60, popen=warm.Popen)


def test_a_backend_that_was_copied_is_used(tmp_path: Path) -> None:
    from pynccl.c10d.build import build

    built = build()
    (tmp_path / "cache").mkdir(mode=0o700)
    shutil.copytree(built.parent, tmp_path / "cache" / built.parent.name)
    done = _check(tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_empty_cache_without_a_compiler(tmp_path: Path) -> None:
    done = _check(tmp_path)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    for part in ("no-compiler", "`python -m pynccl build-backend`", str(tmp_path / "cache")):
        assert part in error


_FORMATS_A_NUMBER = """
#include <sstream>
extern "C" std::size_t digits(int number) {
  std::ostringstream text;
  text << number;
  return text.str().size();
}
"""


_COMPILE = """
import sys
from pathlib import Path
from pynccl._internal.compile_backend import Sources
folder = Path(sys.argv[1])
Sources(folder, folder, "0").compile(folder / "built" / "digits.so", verbose=False)
"""


def test_the_backend_has_no_cxx_library_of_its_own(tmp_path: Path) -> None:
    """Also from a compiler that links its own statically: two of them end the process (SIGSEGV)."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nexec c++ -static-libstdc++ "$@"\n')
    compiler.chmod(0o755)
    (tmp_path / "digits.cpp").write_text(_FORMATS_A_NUMBER)
    (tmp_path / "built").mkdir()
    built = tmp_path / "built" / "digits.so"
    # In a process of its own, because torch renames the second module that a process builds.
    environment = {**os.environ, "CXX": str(compiler)}
    subprocess.run([sys.executable, "-c", _COMPILE, str(tmp_path)], check=True, env=environment)
    defined = subprocess.check_output(["nm", "-C", "--defined-only", str(built)], text=True)
    assert " digits" in defined
    assert "std::locale" not in defined


@pytest.mark.skipif(not FULL, reason="configures a build: PYNCCL_TEST_FULL=1")
def test_the_build_is_refused(tmp_path: Path) -> None:
    """By a Python that pretends to have no GIL."""
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    variables = {**sysconfig.get_config_vars(), "Py_GIL_DISABLED": 1}
    (tmp_path / "no_lock.py").write_text(f"build_time_vars = {variables!r}\n")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "_PYTHON_SYSCONFIGDATA_NAME": "no_lock",
    }
    cmake_of_pybind11 = pytest.importorskip("pybind11").get_cmake_dir()
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_PREFIX_PATH={cmake_of_pybind11}"]
    done = run_command(["cmake", "-S", str(ROOT), "-B", "build", *options], tmp_path, env, 120)
    assert done.returncode != 0
    error = " ".join(done.stderr.split())
    assert "pynccl does not support free-threaded builds of Python" in error
