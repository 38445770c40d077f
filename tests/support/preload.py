"""Runs programs with hostnccl preloaded as libnccl.so.2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pynccl import libraries

__all__ = ["CLIENTS", "environment", "run_client"]

CLIENTS = Path(__file__).parents[1] / "clients"


def environment() -> dict[str, str]:
    """The environment of this process, with the library preloaded."""
    return {**os.environ, "LD_PRELOAD": str(libraries.hostnccl_preload())}


def run_client(client: str, nranks: int, tmp_path: Path, **variables: str) -> list[str]:
    """Return the output of each rank of a client.

    Args:
        client: a file of CLIENTS, called with rank, number of ranks and the file for the id.
        nranks: the number of ranks.
        tmp_path: the folder of that file.
        **variables: additional environment variables.
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
