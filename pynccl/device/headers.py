"""Compiler options for kernels that use <pynccl/device.h> and the headers of the loaded NCCL.

    from pynccl.device import headers

    module = cupy.RawModule(code=source, options=tuple(headers.options("nvrtc")))
    subprocess.run(["g++", "-O3", "-shared", "-fPIC", *headers.options("c++"), "kernels.cpp", ...])
    torch.utils.cpp_extension.load_inline(..., extra_cflags=headers.options("c++"))

A GPU kernel must be compiled with the headers of the NCCL that creates its windows and device
communicators. Other versions are rejected here, before compilation.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

import pynccl
from pynccl import _C, libraries
from pynccl.errors import LibraryNotFoundError

__all__ = ["nccl_include", "options"]


def options(
    compiler: Literal["c++", "nvcc", "nvrtc"], library: _C.Library | None = None
) -> list[str]:
    """Return the options for the language and all include paths.

    Args:
        compiler: "c++" for kernels on CPUs, which need no NCCL; "nvcc" or "nvrtc" for GPUs.
        library: the NCCL that the kernels are for; that of provider "cuda" by default. Ignored for
            "c++".

    Returns:
        Options, which contain no spaces unless a path does.

    Raises:
        ValueError: the compiler is not one of these.
        LibraryNotFoundError: the headers of NCCL or, for NVRTC, of CUDA were not found, or those of
            NCCL have another version.
    """
    own = f"-I{pynccl.get_include()}"
    if compiler == "c++":
        return ["-std=c++20", own]
    if compiler not in {"nvcc", "nvrtc"}:
        raise ValueError(f'compiler: {compiler!r} is neither "c++" nor "nvcc" nor "nvrtc"')
    common = ["-std=c++17", own, f"-I{nccl_include(library)}"]
    if compiler == "nvcc":
        return common
    folders = [f"-I{pynccl.get_include()}/pynccl/device/nvrtc", *map("-I{}".format, _cuda())]
    return [*common, "-default-device", *folders]


def nccl_include(library: _C.Library | None = None) -> Path:
    """Return the folder with the nccl.h and nccl_device.h of a loaded NCCL.

    This is PYNCCL_NCCL_INCLUDE, or else the folder in the installation of libnccl.so.2, or else the
    one found by cuda-pathfinder.

    Args:
        library: the NCCL; that of provider "cuda" by default.

    Returns:
        The folder.

    Raises:
        LibraryNotFoundError: there is none, or its version differs from the library's.
        ValueError: the library is hostnccl, whose kernels do not use NCCL's headers.
    """
    library = library or libraries.load("cuda")
    if library.memory != "device":
        raise ValueError(f"library: {library.path} is for CPUs, whose kernels need no NCCL")
    folder, reason = _locate(library)
    wanted, found = _C.version_text(library.version), _version_of(folder)
    if found != wanted:
        raise LibraryNotFoundError(
            f"{folder} ({reason}) has the headers of NCCL {found}, but {library.path} is NCCL "
            f"{wanted}; kernels need the headers of the same version"
        )
    return folder


def _locate(library: _C.Library) -> tuple[Path, str]:
    if chosen := os.environ.get("PYNCCL_NCCL_INCLUDE"):
        return Path(chosen), "PYNCCL_NCCL_INCLUDE"
    beside = Path(os.path.realpath(library.path)).parent
    for folder in (beside.parent / "include", beside.parent.parent / "include"):
        if (folder / "nccl_device.h").is_file():
            return folder, "of the installation of libnccl.so.2"
    if found := _by_pathfinder("nccl", "nccl_device.h"):
        return found, "found by cuda-pathfinder"
    raise LibraryNotFoundError(
        f"nccl_device.h was not found near {library.path}; it is part of NCCL since 2.28. Set "
        "PYNCCL_NCCL_INCLUDE to its folder"
    )


def _version_of(folder: Path) -> str:
    header = folder / "nccl.h"
    if not header.is_file() or not (folder / "nccl_device.h").is_file():
        raise LibraryNotFoundError(f"{folder} does not contain both nccl.h and nccl_device.h")
    version = header_version(header)
    if version is None:
        raise LibraryNotFoundError(f"{header} does not define its version")
    return version


def header_version(header: Path) -> str | None:
    """Return the version that an nccl.h defines, such as "2.31.2", or None."""
    parts = re.findall(r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text())
    return ".".join(parts) if len(parts) == 3 else None


def _cuda() -> list[Path]:
    """Return the folders with the headers of the CUDA runtime and of libcu++."""
    runtime = _by_pathfinder("cudart", "cuda_runtime.h")
    if runtime is None:
        raise LibraryNotFoundError(
            "cuda_runtime.h was not found; install a CUDA toolkit, or nvidia-cuda-runtime and -cccl"
        )
    folders = [runtime, runtime / "cccl"]
    if not any((folder / "cuda/atomic").is_file() for folder in folders):
        cccl = _by_pathfinder("cccl", "cuda/atomic")
        if cccl is None:
            raise LibraryNotFoundError(f"cuda/atomic is not in {runtime}; install nvidia-cuda-cccl")
        folders.append(cccl)
    return [folder for folder in folders if folder.is_dir()]


def _by_pathfinder(name: str, file: str) -> Path | None:
    try:
        from cuda.pathfinder import find_nvidia_header_directory

        found = find_nvidia_header_directory(name)
    except Exception:  # not installed, or the name is unknown to it
        return None
    return Path(found) if found and (Path(found) / file).is_file() else None
