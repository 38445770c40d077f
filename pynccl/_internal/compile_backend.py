"""Compiles the C++ backend, into a directory named after everything that the build depends on.

torch is imported only where necessary, so `pynccl doctor` can name missing tools without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

__all__ = ["NAME", "Sources", "missing_tools"]

NAME = "_pynccl_c10d"
_FLAGS = ["-O2", "-std=c++20", "-fvisibility=hidden"]


class Sources:
    """The sources of the module.

    Args:
        folder: the folder of the sources.
        include: the include path, as returned by pynccl.get_include().
        version: the version of pynccl.
    """

    def __init__(self, folder: Path, include: Path, version: str) -> None:
        self._folder = folder
        self._include = include
        self._version = version

    def file(self) -> Path:
        """Return the module's relative path, whose folder encodes the versions and a hash."""
        import torch

        digest = hashlib.sha256(" ".join(_FLAGS).encode())
        headers = self._include / "pynccl"
        for folder in (self._folder, headers, headers / "abi"):
            for file in sorted(folder.iterdir()):
                if file.suffix in (".cpp", ".h", ".inc"):
                    digest.update(file.name.encode() + file.read_bytes())
        key = (
            f"torch-{torch.__version__}-pynccl-{self._version}-"
            f"{sys.implementation.cache_tag}-{digest.hexdigest()[:12]}"
        )
        return Path(key) / f"{NAME}.so"

    def compile(self, file: Path, verbose: bool) -> None:
        """Compile all sources as one unit, because torch's headers take most of the time.

        Therefore names in unnamed namespaces must be unique across files.

        Args:
            file: the module's file, in an existing folder.
            verbose: whether to print the compiler's commands.

        Raises:
            RuntimeError: there is no compiler, or it failed.
        """
        _check_tools(file.parent)
        import torch
        from torch.utils import cpp_extension

        print(
            f"pynccl: building the backend for torch {torch.__version__} in {file.parent} "
            "(once, about a minute)",
            file=sys.stderr,
            flush=True,
        )
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            unit = Path(folder) / "all.cpp"
            sources = sorted(self._folder.resolve().glob("*.cpp"))
            unit.write_text("".join(f'#include "{source}"\n' for source in sources))
            try:
                cpp_extension.load(
                    NAME,
                    [str(unit)],
                    extra_cflags=_FLAGS,
                    extra_ldflags=_cxx_library(),
                    extra_include_paths=[str(self._include.resolve())],
                    build_directory=folder,
                    is_python_module=False,
                    is_standalone=False,
                    verbose=verbose,
                )
            except RuntimeError as error:
                raise RuntimeError(
                    f"the backend could not be built for torch {torch.__version__}; "
                    f"`python -m pynccl build-backend` shows the commands: {error}"
                ) from error
            built = Path(folder) / f"{NAME}.so"
            built.chmod(0o755)  # regardless of the umask
            os.replace(built, file)
        if verbose:
            print(f"pynccl: built in {time.monotonic() - began:.0f} s", file=sys.stderr)


def _cxx_library() -> list[str]:
    """The C++ library that torch has loaded, to link with.

    Some compilers link their own statically, and the first number that a module with a second copy
    formats ends the process.
    """
    with open("/proc/self/maps") as maps:
        return list({word for word in maps.read().split() if "/libstdc++.so.6" in word})


def missing_tools() -> list[str]:
    """Return the commands that a build requires and that are not installed: compiler, ninja."""
    commands = os.environ.get("CXX", "c++"), "ninja"  # torch treats CXX as a single word
    return [one for one in commands if shutil.which(one, path=_path()) is None]


def _path() -> str:
    """PATH with the folder in which pip installs ninja, in case no environment is activated."""
    path, scripts = os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")
    return path if scripts in path.split(os.pathsep) else os.pathsep.join([path, scripts])


def _check_tools(folder: Path) -> None:
    os.environ["PATH"] = _path()
    if missing := missing_tools():
        raise RuntimeError(
            f"cannot find {' and '.join(missing)} to build the torch.distributed backend "
            "for the installed torch. Install a C++20 compiler and ninja (`pip install ninja`); "
            "the backend is then built on first use. Or use a machine that has them, with the "
            "same versions of Python, torch and pynccl: run `python -m pynccl build-backend` there "
            f"and copy {folder} to the same path here (to another path with PYNCCL_CACHE)."
        )
