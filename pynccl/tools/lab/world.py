"""The ranks of a command or script: those of torchrun, or launched processes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pynccl import nccl
from pynccl.libraries import PROVIDERS, default_provider
from pynccl.testing import Launcher, Rank
from pynccl.tools.lab.plots import check_matplotlib, draw_lanes
from pynccl.tools.lab.row import Row, write_json, write_table

__all__ = ["is_under_torchrun", "run", "script"]

T = TypeVar("T")


def is_under_torchrun() -> bool:
    """Whether this process is a rank started by torchrun."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "WORLD_SIZE" in os.environ


def run(
    nranks: int,
    function: Callable[..., T],
    args: tuple[Any, ...],
    provider: str,
    env: Mapping[str, str] | None = None,
) -> T | None:
    """Call ``function(comm, *args)`` on all ranks.

    Unless OMP_NUM_THREADS is set, launched ranks share the CPUs: each uses the number of CPUs
    divided by the number of ranks as threads for operations of torch and NumPy. torchrun sets it to
    1.

    Args:
        nranks: number of ranks to launch; under torchrun, its world size counts.
        function: at the top level of a module.
        args: picklable arguments.
        provider: "host" or "cuda".
        env: environment variables for launched processes.

    Returns:
        The result of rank 0; None in the processes of other ranks.

    Raises:
        LaunchError: a launched rank failed.
        ValueError: torchrun started fewer ranks.
    """
    if not is_under_torchrun():
        with Launcher() as launcher:
            results = launcher.launch(
                nranks,
                _call,
                (function, *args),
                provider=provider,
                timeout=None,
                fresh=True,
                env={**_threads(nranks), **(env or {})},
            )
        first: T = results[0]
        return first
    from torch.distributed.rendezvous import rendezvous

    store, rank, world_size = next(rendezvous("env://"))
    if world_size < nranks:
        raise ValueError(f"ranks: {nranks} requested, but torchrun started {world_size}")
    device = int(os.environ["LOCAL_RANK"]) if provider == "cuda" else None
    result: T
    with nccl.Communicator.from_store(
        store, rank, world_size, provider=provider, device=device
    ) as comm:
        result = function(comm, *args)
    return result if rank == 0 else None


def script(
    measure: Callable[[nccl.Communicator], list[Row]], argv: Sequence[str] | None = None
) -> list[Row]:
    """Run a function on all ranks, print a table of its rows, and draw their lanes.

    Call it at the end of a script, under ``if __name__ == "__main__"``. It reads --ranks,
    --provider, --plot (a PNG file) and --json from the command line. It launches the ranks, or uses
    those of torchrun.

    Args:
        measure: called with the communicator on each rank; returns rows. It must be at the top
            level of the script.
        argv: the arguments; None uses those of the process.

    Returns:
        The rows; empty on ranks of torchrun other than rank 0.

    Raises:
        LaunchError: a rank failed.
        ImportError: matplotlib is not installed, and --plot was given.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--provider", choices=PROVIDERS, default=default_provider())
    parser.add_argument("--plot", type=Path, help="draw the lanes of the rows: a PNG file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    if arguments.plot:
        check_matplotlib()
    rows = run(arguments.ranks, measure, (), arguments.provider) or []
    if not rows:
        return rows
    print(write_table(rows))
    if arguments.json:
        write_json(arguments.json, rows)
    if arguments.plot:
        draw_lanes(arguments.plot, rows)
    return rows


def _threads(nranks: int) -> dict[str, str]:
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // nranks))}


def _call(rank: Rank, function: Callable[..., T], *args: object) -> T:
    return function(rank.comm, *args)
