"""Reads recordings, whatever their format is."""

from __future__ import annotations

import json
from pathlib import Path

from pynccl.tools.replay.errors import ReplayError
from pynccl.tools.trace import chrome, recording
from pynccl.tools.trace.model import ProcessTrace

__all__ = ["load"]

_FORMATS = "a recording of pynccl or a trace (Chrome's JSON)"
_GZIP = b"\x1f\x8b"


def load(path: str) -> list[ProcessTrace]:
    """Read a file, one or more processes of it: the format is that of its content.

    Args:
        path: a recording of PYNCCL_RECORD or a trace of nccl.trace().

    Returns:
        The processes in it; a recording has one.

    Raises:
        ReplayError: it is none that is known, or not complete.
        OSError: it cannot be read.
    """
    content = Path(path).read_bytes()
    try:
        if content.startswith(_GZIP):
            return chrome.load(path)
        if not content.lstrip().startswith((b"{", b"[")):
            return [recording.load(path)]
        value = json.loads(content)
        if isinstance(value, list) or "traceEvents" in value:
            return chrome.load(path)
    except recording.RecordingError:
        raise ReplayError(f"{path}: this is not {_FORMATS}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ReplayError(f"{path}: it is truncated, or not JSON: {error}") from None
    except UnicodeDecodeError:
        raise ReplayError(f"{path}: this is not {_FORMATS}") from None
    except ValueError as error:
        raise ReplayError(str(error)) from None
    raise ReplayError(f"{path}: this is not {_FORMATS}")
