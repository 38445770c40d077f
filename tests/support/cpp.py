"""Compiles programs for tests of hostnccl's parts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["compile_with_parts", "compiler"]

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
