"""Builds the C++ of the backend for the installed torch, and loads it.

torch has no stable binary interface for a backend, so its sources are in the package. They are
built when the backend is first used, into a folder for the versions of torch and pynccl and the
contents of the sources: ``$PYNCCL_CACHE``, else ``pynccl`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
No folder or file is loaded that another user can write to: see :mod:`pynccl.c10d.private_folder`.
``python -m pynccl build-backend`` does it ahead of time, and the CMake option PYNCCL_BUILD_BACKEND
when the package is built: into the package, by the same function.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pynccl
from pynccl.c10d import private_folder
from pynccl.c10d.compile import NAME, Sources

__all__ = ["build", "load", "path"]


def _package() -> Path:
    return Path(pynccl.__file__).parent


def _sources() -> Sources:
    """Those of the source tree where the package is in one."""
    package = _package()
    in_tree = package.parent / "csrc" / "c10d"
    include = Path(pynccl.get_include())
    folder = in_tree if in_tree.is_dir() else include / "pynccl" / "c10d"
    return Sources(folder, include, pynccl.__version__)


@functools.cache
def path() -> Path:
    """The file of the module: in the package where it was built with it, else in the cache.

    There it may still have to be built.
    """
    file = _sources().file()
    packaged = _package() / "lib" / "c10d" / file
    return packaged if packaged.exists() else _cache() / file


def build(verbose: bool = False) -> Path:
    """Build the module where that is not done yet; other processes wait meanwhile.

    Args:
        verbose: whether the compiler's commands are printed.

    Returns:
        The file of the module.

    Raises:
        RuntimeError: there is no compiler, or it failed.
        PermissionError: another user can write to the folder, or replace it.
    """
    file = path()
    if file.is_relative_to(_package()):  # as trustworthy as the module that runs this
        return file
    private_folder.create(file.parent)
    if file.exists():
        private_folder.check(file)
        return file
    with (file.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it if the process dies
        if not file.exists():
            _sources().compile(file, verbose)
    return file


@functools.cache
def load() -> ModuleType:
    """The module, built first where that is necessary.

    Raises:
        RuntimeError: it cannot be built.
        PermissionError: another user can write to its folder, or replace it.
    """
    file = build()
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cache() -> Path:
    if chosen := os.environ.get("PYNCCL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pynccl"
