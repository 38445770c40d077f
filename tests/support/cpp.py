"""Compiles programs for tests of hostnccl's parts, and libraries that replace functions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["compile_to_preload", "compile_with_parts", "compiler"]

_CSRC = Path(__file__).resolve().parents[2] / "csrc"


def compiler() -> str:
    """Return a C++ compiler, or skip the test: an installed wheel needs none."""
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def compile_with_parts(
    cxx: str, program: Path, own: Sequence[Path], parts: Sequence[str], flags: Sequence[str]
) -> None:
    """Compile a test's own sources with sources of csrc/hostnccl."""
    sources = [*own, *(_CSRC / "hostnccl" / part for part in parts)]
    command = [cxx, "-std=c++20", "-g", "-O1", *flags, f"-I{_CSRC}", *sources, "-o", program]
    subprocess.run(command, check=True, timeout=300)


def compile_to_preload(folder: Path, name: str, text: str, *options: str) -> Path:
    """Compile C source to a library to preload, or to use in place of hostnccl."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler")
    source, library = folder / f"{name}.c", folder / f"lib{name}.so"
    source.write_text(text)
    command = [found, "-shared", "-fPIC", "-O1", "-o", library, source, *options, "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return library
