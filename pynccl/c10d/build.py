"""Builds the C++ of the backend for the installed torch, and loads it.

torch has no stable binary interface for a backend, so its sources are in the package. They are
built when the backend is first used, into a folder for the versions of torch and pynccl and the
contents of the sources: ``$PYNCCL_CACHE``, else ``pynccl`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.
``python -m pynccl build-backend`` does it ahead of time.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType

import pynccl

__all__ = ["build", "load", "path"]

_NAME = "_pynccl_c10d"
_FLAGS = ["-O2", "-std=c++20", "-fvisibility=hidden"]


def _sources() -> Path:
    """The folder of the sources: of the source tree where the package is in one."""
    package = Path(pynccl.__file__).parent
    in_tree = package.parent / "csrc" / "c10d"
    return in_tree if in_tree.is_dir() else package / "include" / "pynccl" / "c10d"


@functools.cache
def path() -> Path:
    """The file of the module, whether it is built or not."""
    import torch

    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    headers = Path(pynccl.get_include()) / "pynccl"
    for folder in (_sources(), headers, headers / "abi"):
        for file in sorted(folder.iterdir()):
            if file.suffix in (".cpp", ".h", ".inc"):
                digest.update(file.name.encode() + file.read_bytes())
    key = (
        f"torch-{torch.__version__}-pynccl-{pynccl.__version__}-"
        f"{sys.implementation.cache_tag}-{digest.hexdigest()[:12]}"
    )
    return _cache() / key / f"{_NAME}.so"


def build(verbose: bool = False) -> Path:
    """Build the module where that is not done yet; other processes wait meanwhile.

    Args:
        verbose: whether the compiler's commands are printed.

    Returns:
        The file of the module.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    file = path()
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it if the process dies
        if not file.exists():
            _compile(file, verbose)
    return file


@functools.cache
def load() -> ModuleType:
    """The module, built first where that is necessary.

    Raises:
        RuntimeError: it cannot be built.
    """
    file = build()
    spec = importlib.util.spec_from_file_location(_NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _cache() -> Path:
    if chosen := os.environ.get("PYNCCL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pynccl"


def _compile(file: Path, verbose: bool) -> None:
    """Compile all sources as one unit, since torch's headers take most of the time.

    So the names in their unnamed namespaces must differ.
    """
    _find_tools()
    import torch
    from torch.utils import cpp_extension

    print(
        f"pynccl: building its backend for torch {torch.__version__} into {file.parent} "
        "(once, about a minute)",
        file=sys.stderr,
        flush=True,
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        unit = Path(folder) / "all.cpp"
        sources = sorted(_sources().glob("*.cpp"))
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        try:
            cpp_extension.load(
                _NAME,
                [str(unit)],
                extra_cflags=_FLAGS,
                extra_include_paths=[pynccl.get_include()],
                build_directory=folder,
                is_python_module=False,
                is_standalone=False,
                verbose=verbose,
            )
        except RuntimeError as error:
            raise RuntimeError(
                f"pynccl: its backend could not be built for torch {torch.__version__}; "
                f"`python -m pynccl build-backend` shows the commands: {error}"
            ) from error
        os.replace(Path(folder) / f"{_NAME}.so", file)
    if verbose:
        print(f"pynccl: built in {time.monotonic() - began:.0f} s", file=sys.stderr)


def _find_tools() -> None:
    # Where pip puts ninja, for an interpreter whose environment is not activated.
    scripts = sysconfig.get_path("scripts")
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), scripts])
    compiler = os.environ.get("CXX", "c++")
    missing = [tool for tool in (compiler, "ninja") if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(
            f"pynccl: its backend for torch.distributed is C++ that is built for the installed "
            f"torch, and {' and '.join(missing)} cannot be found. Install a C++20 compiler and "
            "ninja, and it is built at its first use; or run `python -m pynccl build-backend` on a "
            "machine that has them, with the same versions of Python, torch and pynccl, and copy "
            f"{path().parent} to the same place here, or elsewhere with PYNCCL_CACHE."
        )
