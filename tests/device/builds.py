"""Compiles the kernels of the examples for CPUs; finds the headers that compile them for GPUs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pynccl
from benchmarks.kernels import FOLDER, source
from pynccl.device import headers
from tests.support.commands import ROOT, run_command

__all__ = [
    "FOLDER",
    "KERNELS",
    "compile_for_cpus",
    "cuda_includes",
    "nccl_headers",
    "own_includes",
    "source",
]

# The folder in which `make abi` stores real headers, one folder per wheel.
_CACHE = Path(os.environ.get("PYNCCL_ABI_CACHE") or Path(sys.prefix, "abi"))


def _names() -> list[str]:
    defined = re.compile(r"^PYNCCL_KERNEL\((\w+),", re.MULTILINE)
    return [
        name for path in sorted(FOLDER.glob("*.cu")) for name in defined.findall(path.read_text())
    ]


KERNELS = _names()


def own_includes() -> list[str]:
    """A user's options for the header and the kernels."""
    return [f"-I{pynccl.get_include()}", f"-I{FOLDER}"]


def compile_for_cpus(target: Path, text: str, *options: str) -> Path:
    """Compile a text with the package's options and the kernels' folder; warnings are errors."""
    file = target.with_suffix(".cpp")
    file.write_text(text)
    command = [os.environ.get("CXX", "g++"), *headers.options("c++"), "-Wall", "-Wextra"]
    command += ["-Wpedantic", "-Werror", "-pthread", f"-I{FOLDER}", f"-I{Path(__file__).parent}"]
    command += [*options, str(file), "-o", str(target)]
    done = run_command(command, ROOT, os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def _wheel_folders() -> list[Path]:
    """The locations of wheels with headers: installed ones, and the cache of `make abi`."""
    spec = importlib.util.find_spec("nvidia")
    installed = [Path(path) for path in (spec.submodule_search_locations or [])] if spec else []
    cached = sorted(_CACHE.glob("*/nvidia")) if _CACHE.is_dir() else []
    return [*installed, *cached]


def nccl_headers() -> dict[int, Path]:
    """Folders with NCCL's headers by their NCCL_VERSION_CODE, those that have nccl_device.h."""
    found = {}
    for folder in _wheel_folders():
        include = folder / "nccl" / "include"
        if not (include / "nccl_device.h").is_file():
            continue
        text = (include / "nccl.h").read_text()
        parts = [
            re.search(rf"#define NCCL_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")
        ]
        major, minor, patch = (int(part[1]) for part in parts if part)
        found[major * 10000 + minor * 100 + patch] = include
    return found


def cuda_includes() -> list[str]:
    """Options for CUDA's own headers, for NVRTC; empty if they are incomplete."""
    nvcc = shutil.which("nvcc")
    folders = [
        folder / "include" for parent in _wheel_folders() for folder in parent.glob("cu[0-9]*")
    ]
    if nvcc:
        folders.append(Path(nvcc).resolve().parents[1] / "include")
    for parts in (folders[:-1] if nvcc else folders, folders[-1:] if nvcc else []):
        paths = [*parts, *(part / "cccl" for part in parts)]
        needed = ("cuda_runtime.h", "crt/host_defines.h", "nv/target", "cuda/atomic")
        if all(any((path / name).is_file() for path in paths) for name in needed):
            return [f"-I{path}" for path in paths if path.is_dir()]
    return []
