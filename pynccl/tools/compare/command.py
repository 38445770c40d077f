"""The command ``pynccl compare``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pynccl.tools.compare.comparison import read

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--ranks", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument(
        "--backend", help="of torch, to compare with (default: nccl if there are GPUs, else gloo)"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for each run (default: 600)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("script", help="a script that calls torch.distributed, as for torchrun")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if the output differs or a run failed, 2 for wrong arguments.
    """
    try:
        import torch
    except ImportError:
        print("pynccl compare: needs torch, which is not installed", file=sys.stderr)
        return 2
    from pynccl.c10d.build import build

    if arguments.ranks < 1 or not Path(arguments.script).is_file():
        print(f"pynccl compare: no ranks, or no file {arguments.script}", file=sys.stderr)
        return 2
    build()  # at the first use of this torch, which takes longer than most scripts
    backends = (arguments.backend or ("nccl" if torch.cuda.is_available() else "gloo"), "pynccl")
    with tempfile.TemporaryDirectory(prefix="pynccl-compare-") as folder:
        for backend in backends:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc-per-node={arguments.ranks}", "-m", "pynccl.tools.compare.worker"]
            command += [folder, backend, arguments.script, *arguments.arguments]
            threads = max(1, len(os.sched_getaffinity(0)) // arguments.ranks)
            env = {"OMP_NUM_THREADS": str(threads), **os.environ}
            if problem := _problem(command, env, arguments.timeout):
                print(f"pynccl compare: the script {problem} over {backend}", file=sys.stderr)
                return 1
        found = read(Path(folder), backends, arguments.ranks)
    print(json.dumps(asdict(found), indent=2) if arguments.json else found.text())
    return 0 if found.equal else 1


def _problem(command: list[str], env: dict[str, str], timeout: float) -> str | None:
    with subprocess.Popen(command, env=env) as process:
        try:
            return f"failed (status {status})" if (status := process.wait(timeout)) else None
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun, which then ends the ranks
            return f"was not done after {timeout:g} s"
