"""Builds the double's libraries with CMake and Ninja if their sources have changed."""

from __future__ import annotations

import fcntl
import filecmp
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["VERSIONS", "BuildError", "build", "nccl"]

VERSIONS = {"2.18": 21805, "2.24": 22403, "2.28": 22809, "2.30": 23007, "2.32": 23203}

_SOURCES = Path(__file__).parent / "cuda"


class BuildError(RuntimeError):
    """The double cannot be built on this machine."""


def build(folder: Path) -> Path:
    """Build into a folder, and return it.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        include, versions = _torch_include(), ";".join(map(str, VERSIONS.values()))
        configure = [
            "cmake",
            "-S",
            str(_SOURCES),
            "-B",
            str(folder),
            "-G",
            "Ninja",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DTORCH_INCLUDE={include}",
            f"-DNCCL_VERSIONS={versions}",
        ]
        if launcher := shutil.which("ccache"):
            configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}")
        cache = folder / "CMakeCache.txt"
        text = cache.read_text() if cache.exists() else ""
        if not all(f"={value}\n" in text for value in (include, versions)):
            _run(configure)
        _run(["cmake", "--build", str(folder)])
        _copy(_hostnccl(), folder / "libengine.so")
    return folder


def nccl(folder: Path, version: str) -> Path:
    """Return the path of a version's libnccl.so.2 in a build folder.

    Raises:
        BuildError: the double has no such version.
    """
    if version not in VERSIONS:
        raise BuildError(f"PYNCCL_DOUBLE is {version!r}, not one of {', '.join(VERSIONS)}")
    return folder / str(VERSIONS[version]) / "libnccl.so.2"


def _run(command: list[str]) -> None:
    # cmake and ninja may be installed in this Python's virtual environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
        )
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed") from error
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def _torch_include() -> str:
    found = importlib.util.find_spec("torch")
    return str(Path(found.origin).parent / "include") if found and found.origin else ""


def _hostnccl() -> Path:
    if given := os.environ.get("PYNCCL_HOSTNCCL_LIBRARY"):
        return Path(given)
    found = importlib.util.find_spec("pynccl")
    if found is None or not found.origin:
        raise BuildError("pynccl is not installed")
    return Path(found.origin).parent / "lib" / "libhostnccl.so"


def _copy(source: Path, target: Path) -> None:
    """Replace a file atomically if it differs."""
    if target.exists() and filecmp.cmp(source, target, shallow=False):
        return
    shutil.copyfile(source, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)
