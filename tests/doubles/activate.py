"""Activates the double in a process: its libcuda.so.1 at once, torch's stand-ins with torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["activate"]


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Puts the stand-ins in place when torch has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _stand_in()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _stand_in() -> None:
    from doubles import torch_cuda

    torch_cuda.activate()


def activate() -> None:
    """Load libcuda.so.1 and wait for torch."""
    from doubles import library

    library.driver()
    if "torch" in sys.modules:
        _stand_in()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())
