"""Compiles the C sources of the benchmarks when they are needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["find", "shared_library"]

_TIMEOUT = 60.0  # seconds


def find() -> str:
    """The C compiler's command; empty where there is none."""
    return next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), "")


def shared_library(source: str, folder: Path, includes: Sequence[str] = ()) -> Path:
    """Compile a file of this folder.

    Args:
        source: its name.
        folder: where the library goes, under the same name with another suffix.
        includes: folders of headers.

    Returns:
        The library.
    """
    target = (folder / source).with_suffix(".so")
    command = [find(), "-O3", "-shared", "-fPIC", *(f"-I{include}" for include in includes)]
    command += ["-o", str(target), str(Path(__file__).with_name(source))]
    subprocess.run(command, check=True, timeout=_TIMEOUT)
    return target
