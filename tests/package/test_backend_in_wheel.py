"""Proves that a package with a built-in backend for the installed torch works without a compiler
and with an empty cache, that the error of any other package says how to get the backend, and that
the backend uses the C++ library of torch; in the full tests also that a wheel built with
PYNCCL_BUILD_BACKEND has a built-in backend, and which builds are refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import pynccl
from tests.support import warm
from tests.support.commands import ROOT, run_command
from tests.support.tier import FULL

pytest.importorskip("torch")

_CHECK = """
import sys
import pynccl.c10d, torch, torch.distributed as dist
assert pynccl.__file__.startswith(sys.argv[1]), pynccl.__file__
dist.init_process_group("pynccl", init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert tensor.tolist() == [1] * 4
dist.destroy_process_group()
"""


def _check(site: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Use the backend of the package in ``site`` without a compiler, and with an empty cache."""
    for name in ("none", "cache"):
        (folder / name).mkdir()
    others = [path for path in sys.path if path and Path(path).resolve() != ROOT]
    env = {
        **os.environ,
        "PATH": str(folder / "none"),
        "CXX": "no-compiler",  # one may stand beside the interpreter
        "PYNCCL_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(site), *others]),
    }
    command = [sys.executable, "-c", _CHECK, str(site), str(folder / "store")]
    return run_command(command, folder, env, timeout=60, popen=warm.Popen)


def _create_package(site: Path, built: Path, folder: str) -> None:
    """Create a package like that of a wheel, without sources, from links to the files of this one.

    Args:
        site: the folder for the package.
        built: the library of the backend.
        folder: the name of its folder, which identifies the torch that it was built for.
    """
    this, other = Path(pynccl.__file__).parent, site / "pynccl"
    other.mkdir(parents=True)
    for file in this.iterdir():
        if file.name not in ("include", "lib"):
            (other / file.name).symlink_to(file)
    (other / "include" / "pynccl").mkdir(parents=True)
    for file in Path(pynccl.get_include(), "pynccl").iterdir():
        if file.name != "c10d":
            (other / "include" / "pynccl" / file.name).symlink_to(file)
    # The sources of the tree, because they may have changed since the installation.
    sources = ROOT / "csrc" / "c10d"
    (other / "include" / "pynccl" / "c10d").symlink_to(sources)
    (other / "lib").mkdir()
    for file in (this / "lib").iterdir():
        if file.name != "c10d":
            (other / "lib" / file.name).symlink_to(file)
    (other / "lib" / "c10d" / folder).mkdir(parents=True)
    (other / "lib" / "c10d" / folder / built.name).symlink_to(built)


def test_the_backend_of_the_package_is_used(tmp_path: Path) -> None:
    from pynccl.c10d.build import build

    built = build()
    _create_package(tmp_path / "site", built, built.parent.name)
    done = _check(tmp_path / "site", tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "cache").iterdir())


def test_a_backend_for_another_torch_is_not_used(tmp_path: Path) -> None:
    from pynccl.c10d.build import build

    built = build()
    other_torch = built.parent.name.replace("torch-", "torch-0.", 1)
    _create_package(tmp_path / "site", built, other_torch)
    done = _check(tmp_path / "site", tmp_path)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    for part in ("no-compiler", "`python -m pynccl build-backend`", "PYNCCL_BUILD_BACKEND=ON"):
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


_NO_TORCH = ("cannot import torch", "--no-build-isolation", "`python -m pynccl build-backend`")
_NO_LOCK = ("pynccl does not support free-threaded builds of Python",)


@pytest.mark.skipif(not FULL, reason="configures a build: PYNCCL_TEST_FULL=1")
@pytest.mark.parametrize(
    ("option", "texts"), [("-DPYNCCL_BUILD_BACKEND=ON", _NO_TORCH), ("", _NO_LOCK)]
)
def test_the_build_is_refused(tmp_path: Path, option: str, texts: tuple[str, ...]) -> None:
    """With the backend but without torch, and by a Python that pretends to have no GIL."""
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    if option:
        (tmp_path / "torch.py").write_text("raise ImportError('torch is not here')\n")
    else:
        variables = {**sysconfig.get_config_vars(), "Py_GIL_DISABLED": 1}
        (tmp_path / "no_lock.py").write_text(f"build_time_vars = {variables!r}\n")
        env["_PYTHON_SYSCONFIGDATA_NAME"] = "no_lock"
    cmake_of_pybind11 = pytest.importorskip("pybind11").get_cmake_dir()
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_PREFIX_PATH={cmake_of_pybind11}"]
    command = ["cmake", "-S", str(ROOT), "-B", "build", *options, *filter(None, [option])]
    done = run_command(command, tmp_path, env, timeout=120)
    assert done.returncode != 0
    error = " ".join(done.stderr.split())
    assert [text for text in texts if text not in error] == []


@pytest.mark.skipif(not FULL, reason="builds all of pynccl: PYNCCL_TEST_FULL=1")
def test_a_wheel_with_the_backend(tmp_path: Path) -> None:
    for module in ("scikit_build_core", "setuptools", "pip"):
        pytest.importorskip(module)
    tree, site = tmp_path / "tree", tmp_path / "site"
    tree.mkdir()
    built = shutil.ignore_patterns("__pycache__", "*.so", "include", "lib")
    for name in ("csrc", "pynccl", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=built)
    for name in ("CMakeLists.txt", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree)
    for path in ROOT.glob("LICENSE*"):
        shutil.copy(path, tree)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    option = "cmake.define.PYNCCL_BUILD_BACKEND=ON"
    for command in (
        ["wheel", "--no-build-isolation", "--no-deps", "--config-settings", option, "-w", ".", "."],
        ["install", "--no-deps", "--no-index", "--target", str(site), "--find-links=.", "rawnccl"],
    ):
        done = run_command([*pip, *command], tree, os.environ, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
    done = _check(site, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "cache").iterdir())
