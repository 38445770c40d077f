"""Builds the C++ backend for the installed torch, and loads it.

torch has no stable ABI for backends, so the package contains the sources. They are built on first
use in a cache directory, ``$PYNCCL_CACHE`` or else ``pynccl`` in ``$XDG_CACHE_HOME`` or
``~/.cache``, into a subdirectory named after the versions of torch and pynccl and a hash of the
sources. Nothing that another user can write to is loaded: see :mod:`pynccl.c10d.private_folder`.
``python -m pynccl build-backend`` builds ahead of time.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pynccl
from pynccl._internal.compile_backend import NAME, Sources
from pynccl.c10d import private_folder

__all__ = ["build", "load", "path"]


def _sources() -> Sources:
    """Return the sources, from the source tree if the package is in one."""
    in_tree = Path(pynccl.__file__).parents[1] / "csrc" / "c10d"
    include = Path(pynccl.get_include())
    folder = in_tree if in_tree.is_dir() else include / "pynccl" / "c10d"
    return Sources(folder, include, pynccl.__version__)


@functools.cache
def path() -> Path:
    """Return the module's path in the cache, which may not exist yet."""
    return _cache() / _sources().file()


def build(verbose: bool = False) -> Path:
    """Build the module if it does not exist; other processes wait for the build.

    Args:
        verbose: whether to print the compiler's commands.

    Returns:
        The file of the module.

    Raises:
        RuntimeError: there is no compiler, or it failed.
        PermissionError: another user can write to or replace the folder.
    """
    file = path()
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
    """Load the module, building it first if necessary.

    Raises:
        RuntimeError: it cannot be built.
        PermissionError: another user can write to or replace its folder.
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
