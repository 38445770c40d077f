"""Reads recordings, whatever their format is."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from pynccl.replay import chakra
from pynccl.replay.recorded import ReplayError
from pynccl.trace.model import ProcessTrace

__all__ = ["load"]


def load(path: str) -> list[ProcessTrace]:
    """Read a file: a recording, a trace (Chrome's JSON), or an execution trace of PyTorch.

    Raises:
        ReplayError: it is none of these, or not complete.
        OSError: it cannot be read.
    """
    content = Path(path).read_bytes()
    head = content.lstrip()[:1]
    if head not in (b"{", b"["):
        return _with("pynccl.trace.recording", path)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ReplayError(f"{path}: it is truncated, or not JSON: {error}") from None
    if isinstance(value, dict) and "chakra" in str(value.get("schema", "")):
        return [chakra.parse(value, path)]
    return _with("pynccl.trace.chrome", path)


def _with(module: str, path: str) -> list[ProcessTrace]:
    try:
        reader: Any = importlib.import_module(module)
    except ImportError:
        raise ReplayError(
            f"{path}: this is no recording, trace or execution trace that this pynccl reads"
        ) from None
    try:
        found = reader.load(path)
    except ValueError as error:
        raise ReplayError(str(error)) from None
    return found if isinstance(found, list) else [found]
