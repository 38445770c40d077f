"""Builds libnoopnccl.so from csrc/noop: an NCCL whose functions succeed without doing anything.

    python -m tools.noop          # prints its path

Benchmarks of the binding and some tests load it in place of NCCL. It is not part of the wheel. It
is built on first use and cached in build/noop until its sources or the compiler change.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

__all__ = ["library"]

_ROOT = Path(__file__).parents[1]
_SOURCES = ("noop/noop.cpp", "noop/answers.cpp")
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Icsrc",
)
_TIMEOUT = 300.0  # seconds


@functools.cache
def library() -> Path:
    """Return the path of libnoopnccl.so, after building it if needed.

    Raises:
        RuntimeError: there is no C++ compiler, or it fails.
    """
    names = (*shlex.split(os.environ.get("CXX", "")), "c++", "g++", "clang++")
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise RuntimeError("libnoopnccl.so cannot be built: there is no C++ compiler")
    digest = hashlib.sha256(repr((compiler, _FLAGS)).encode())
    for folder in ("noop", "abi"):
        for path in sorted((_ROOT / "csrc" / folder).iterdir()):
            if path.suffix in (".cpp", ".h", ".inc"):
                digest.update(path.read_bytes())
    target = _ROOT / "build" / "noop" / digest.hexdigest()[:16] / "libnoopnccl.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built under a temporary name, because several processes may build it at once.
        part = target.with_name(f"{os.getpid()}.part")
        command = [compiler, *_FLAGS, *(f"csrc/{source}" for source in _SOURCES), "-o", str(part)]
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"libnoopnccl.so cannot be built: {shlex.join(command)}\n{done.stderr}"
            )
        part.replace(target)
    return target


if __name__ == "__main__":
    print(library())
