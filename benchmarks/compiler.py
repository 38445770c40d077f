"""Compiles the C sources of the benchmarks when they are needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["FOLDER", "find", "shared_library"]

FOLDER = Path(__file__).parent  # of the C sources

_TIMEOUT = 120.0  # seconds


def find() -> str:
    """The C compiler's command; empty where there is none."""
    return next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), "")


def shared_library(source: Path, folder: Path, *options: str, compiler: str = "") -> Path:
    """Compile a file, in C unless a compiler is given.

    Args:
        source: the file.
        folder: where the library goes, under the same name with another suffix.
        *options: of the compiler.
        compiler: its command.

    Returns:
        The library.
    """
    target = (folder / source.name).with_suffix(".so")
    command = [compiler or find(), "-O3", "-shared", "-fPIC", *options, str(source)]
    subprocess.run([*command, "-o", str(target)], check=True, timeout=_TIMEOUT)
    return target
