"""The command ``pynccl compare``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pynccl.testing import LaunchError
from pynccl.tools.compare.comparison import read
from pynccl.tools.text import positive, seconds

__all__ = ["add_arguments", "run"]

_STACKS = 1.0  # seconds in which the ranks print their stacks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--ranks", type=positive, default=2, help="number of processes (default: 2)"
    )
    parser.add_argument(
        "--backend", help="torch's backend to compare with (default: nccl with GPUs, else gloo)"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=600.0, help="seconds for each run (default: 600)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("script", help="a script that calls torch.distributed, as for torchrun")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's arguments")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if the output differs.

    Raises:
        ImportError: torch is not installed.
        ValueError: there is no such script.
        LaunchError: a run of the script failed.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("needs torch, which is not installed") from error
    from pynccl.c10d.build import build

    if not Path(arguments.script).is_file():
        raise ValueError(f"script: no such file: {arguments.script}")
    build()  # at the first use of this torch, which takes longer than most scripts
    backends = (arguments.backend or ("nccl" if torch.cuda.is_available() else "gloo"), "pynccl")
    with tempfile.TemporaryDirectory(prefix="pynccl-compare-") as name:
        folder, again = Path(name), Path(name, "again")
        for backend in backends:
            _run_script(arguments, folder, backend)
        found = read(folder, backends, arguments.ranks)
        if not found.equal:  # does it differ in every run?
            again.mkdir()
            _run_script(arguments, again, backends[0])
            found = read(folder, backends, arguments.ranks, again)
    print(json.dumps(found.json(), indent=2) if arguments.json else found.text())
    return 0 if found.equal else 1


def _run_script(arguments: argparse.Namespace, folder: Path, backend: str) -> None:
    """Run the script over a backend.

    Raises:
        LaunchError: it failed or did not finish in time, or a rank left no result.
    """
    deadline = time.monotonic() + arguments.timeout
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={arguments.ranks}", "-m", "pynccl.tools.compare.worker"]
    command += [str(folder), backend, str(deadline), arguments.script, *arguments.arguments]
    threads = max(1, len(os.sched_getaffinity(0)) // arguments.ranks)
    env = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONHASHSEED": "0",  # the order of sets is that of the other run
        "KINETO_LOG_LEVEL": "99",  # else torch's profiler reports its stages
        **os.environ,
    }
    with subprocess.Popen(command, env=env) as process:
        try:
            # The ranks print their stacks at the deadline.
            status = process.wait(arguments.timeout + _STACKS)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun, which then ends the ranks
            text = f"did not finish within {arguments.timeout:g} s over {backend}"
            raise LaunchError(f"the script {text}: see the stacks of the ranks above") from None
    if status:
        raise LaunchError(f"the script failed (status {status}) over {backend}")
    for rank in range(arguments.ranks):
        if not (folder / f"{backend}.{rank}.json").exists():
            text = f"rank {rank} ended without a result over {backend}"
            raise LaunchError(f"{text}: the script may call os._exit()")
