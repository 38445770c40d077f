"""Runs programs in which hostnccl is the libnccl.so.2, by LD_PRELOAD."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pynccl import libraries

__all__ = ["CLIENTS", "environment", "run_client"]

CLIENTS = Path(__file__).parents[1] / "clients"


def environment() -> dict[str, str]:
    """This process's, with the library."""
    return {**os.environ, "LD_PRELOAD": str(libraries.hostnccl_preload())}


def run_client(client: str, nranks: int, tmp_path: Path, **variables: str) -> list[str]:
    """What each rank of a client prints.

    Args:
        client: a file of CLIENTS, called with the rank, their number and the file for the id.
        nranks: how many.
        tmp_path: a folder for that file.
        **variables: of the environment, besides.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, CLIENTS / client, str(rank), str(nranks), tmp_path / "id"],
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(nranks)
    ]
    try:
        ends = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, stderr) in zip(processes, ends, strict=True):
        assert process.returncode == 0, stderr
    return [stdout.strip() for stdout, _ in ends]
