"""The Python packages that pynccl uses: which are installed, and their purpose."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from functools import partial

from pynccl._internal.compile_backend import missing_tools
from pynccl._internal.installation import conflict
from pynccl.tools.doctor.finding import Finding

__all__ = ["examine"]

_ok = partial(Finding, "packages", "ok")
_note = partial(Finding, "packages", "note")
_problem = partial(Finding, "packages", "problem")
_FIRST_TORCH = (2, 11)


def examine(*, device_present: bool) -> Iterator[Finding]:
    """Examine the packages without importing them.

    Args:
        device_present: whether there is an NVIDIA GPU.
    """
    if what := conflict():
        yield _problem(*what.split(". To repair it: "))
    yield _torch_finding(_version("torch"), device_present)
    yield _numpy_finding(_version("numpy"))
    if device_present and _version("cuda-pathfinder") is None:
        yield _problem(
            "cuda-pathfinder is not installed: it finds libnccl.so.2", "pip install cuda-pathfinder"
        )
    if _version("torch") and (missing := missing_tools()):
        yield _note(
            f"cannot find {' and '.join(missing)}, which build the torch.distributed backend "
            '"pynccl" at its first use (`import pynccl as dist` does not need them)',
            "install g++ 11 or newer, and ninja (pip install ninja)",
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_finding(version: str | None, device_present: bool) -> Finding:
    if version is None:
        return _note(
            "torch is not installed: `import pynccl as dist` and pynccl.ops need it, pynccl.nccl "
            "and pynccl.raw do not",
            "pip install torch",
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _FIRST_TORCH:
        return _problem(
            f"torch {version} is older than {'.'.join(map(str, _FIRST_TORCH))}, the first that "
            "pynccl supports",
            "pip install --upgrade torch",
        )
    if device_present and version.endswith("+cpu"):
        return _note(
            f"torch {version} is built without CUDA, and there is a GPU",
            "pip install torch from a PyTorch index with CUDA (pytorch.org, Get Started)",
        )
    return _ok(f"torch {version}")


def _numpy_finding(version: str | None) -> Finding:
    if version is None:
        return _note(
            "NumPy is not installed: the examples on CPUs without torch need it, pynccl does not",
            "pip install numpy",
        )
    return _ok(f"NumPy {version}")
