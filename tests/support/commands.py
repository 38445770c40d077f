"""Runs commands with a deadline, and ends all processes they start."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Future[subprocess.CompletedProcess[str]]  # of run_ahead()


def run_command(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    timeout: float,
    *,
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
) -> subprocess.CompletedProcess[str]:
    """Run a command in its own session. No process of the session survives the call.

    Args:
        command: the program and its arguments.
        folder: the working directory.
        env: the complete environment.
        timeout: seconds until it is killed and AssertionError is raised with its output.
        popen: the class that starts it; warm.Popen for a Python program that imports torch.
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


def run_python(
    *arguments: str,
    timeout: float = 60,
    popen: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter from the project's folder, with variables added to its environment."""
    env = {**os.environ, **variables}
    return run_command([sys.executable, *arguments], ROOT, env, timeout, popen=popen)


def python_output(code: str, *arguments: str, without: str = "", **variables: str) -> str:
    """Run a program from the root folder, and return its output.

    Args:
        code: the program.
        *arguments: its arguments.
        without: the prefix of variables of this environment that it does not get.
        **variables: added to its environment.
    """
    own = {k: v for k, v in os.environ.items() if not (without and k.startswith(without))}
    env = {**own, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = run_command([sys.executable, "-c", code, *arguments], Path("/"), env, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def free_port() -> int:
    """An unused port, below 32768, from where on Linux takes the ports of connections."""
    while True:
        port = 10_000 + secrets.randbelow(22_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def run_ahead(
    request: pytest.FixtureRequest,
    parameter: str,
    run: Callable[[Any], Any],
    at_once: int = 2,
) -> Iterator[dict[Any, Future[Any]]]:
    """Call a function for each parameter value of the selected tests, two at a time.

    For a module fixture whose tests then use the results. Such commands spend most of their time on
    importing torch, each on one core. They run on other threads: see warm.own_environment().
    """
    values = dict.fromkeys(
        item.callspec.params[parameter]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and parameter in getattr(getattr(item, "callspec", None), "params", {})
    )
    with ThreadPoolExecutor(at_once) as pool:
        yield {value: pool.submit(run, value) for value in values}
        pool.shutdown(cancel_futures=True)
