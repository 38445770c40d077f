"""Activates the double in a process: its libcuda.so.1 immediately, the stand-ins for torch and CuPy
when those are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from tests.doubles import library

__all__ = ["activate"]


class _Finder(importlib.abc.MetaPathFinder):
    """Installs the stand-ins after torch is imported, and in place of CuPy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "torch":
            return _with_stand_ins(name)
        if name == "cupy" and _stands_in_for_cupy():
            return importlib.machinery.ModuleSpec(name, _Cupy())
        return None


class _Cupy(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from tests.doubles import cupy_cuda

        cupy_cuda.activate()


def _stands_in_for_cupy() -> bool:
    """Whether to replace CuPy: not if CuPy's own bindings use another libnccl.so.2."""
    return "libnccl.so" not in os.environ.get("LD_PRELOAD", "")


def _with_stand_ins(name: str) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            continue
        spec = finder.find_spec(name, None)
        if spec is None or spec.loader is None:
            continue
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType, execute: object = execute) -> None:
            library.torch_device()  # before torch first checks for CUDA
            execute(module)
            _stand_in()

        spec.loader.exec_module = exec_module
        return spec
    return None


def _stand_in() -> None:
    from tests.doubles import torch_cuda

    torch_cuda.activate()


def activate() -> None:
    """Load libcuda.so.1, and install the stand-ins when torch and CuPy are imported."""
    library.driver()
    if "torch" in sys.modules:
        library.torch_device()
        _stand_in()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
