"""Runs commands with a deadline, and ends all processes that they start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

_AT_ONCE = 2


def run_command(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    timeout: float,
    *,
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, of which nothing is left when this returns.

    Args:
        command: the program and its arguments.
        folder: where it runs.
        env: all its environment.
        timeout: seconds until it is killed, and AssertionError raised with what it has printed.
        popen: what starts it; warm.Popen for a Python program that imports torch.
    """
    process = popen(
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


@contextlib.contextmanager
def run_ahead(
    request: pytest.FixtureRequest, parameter: str, run: Callable[[Any], Any]
) -> Iterator[dict[Any, Future[Any]]]:
    """Call a function for each value of a parameter of the tests that were selected, two at a time.

    For a fixture of a module whose tests then take their results. What such commands take longest
    for is to import torch, each on one core.
    """
    values = dict.fromkeys(
        item.callspec.params[parameter]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and parameter in getattr(getattr(item, "callspec", None), "params", {})
    )
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield {value: pool.submit(run, value) for value in values}
        pool.shutdown(cancel_futures=True)
