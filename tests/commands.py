"""Runs a command with all that it starts, with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_command(
    command: Sequence[str], folder: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, of which nothing is left when this returns.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        env: all its environment.
        timeout: seconds until it is killed, and AssertionError raised with what it has printed.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if late:
        out, err = process.communicate()
        raise AssertionError(f"not done within {timeout:g} s\n{out}{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)
