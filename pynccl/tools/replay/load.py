"""Reads recordings in any supported format."""

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
    """Read the processes in a file, whose format is detected from its contents.

    Args:
        path: a recording of PYNCCL_RECORD or a trace of nccl.trace().

    Returns:
        The processes in it; a recording contains one.

    Raises:
        ReplayError: the file has an unknown format, or is incomplete.
        OSError: the file cannot be read.
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
