"""Scripts that measure the overlap of their own functions: arguments, ranks, output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from pynccl import nccl
from pynccl.libraries import PROVIDERS, default_provider
from pynccl.tools.lab import output, world
from pynccl.tools.lab.row import Row

__all__ = ["script"]


def script(
    measure: Callable[[nccl.Communicator], list[Row]],
    argv: Sequence[str] | None = None,
    *,
    ranks: int = 2,
) -> list[Row]:
    """Run a function on all ranks, print a table of its rows, and draw their lanes.

    Call it at the end of a script, under ``if __name__ == "__main__"``. It reads --ranks,
    --provider, --plot (a PNG file) and --json from the command line. It launches the ranks, or uses
    those of torchrun.

    Args:
        measure: called with the communicator on each rank; returns rows. It must be at the top
            level of the script.
        argv: the arguments; None uses those of the process.
        ranks: the default of --ranks.

    Returns:
        The rows; empty on ranks of torchrun other than rank 0.

    Raises:
        LaunchError: a rank failed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--provider", choices=PROVIDERS, default=default_provider())
    parser.add_argument("--plot", type=Path, help="draw the lanes of the rows: a PNG file")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    rows = world.run(arguments.ranks, measure, (), arguments.provider) or []
    if not rows:
        return rows
    print(output.write_table(rows))
    if arguments.json:
        output.write_json(arguments.json, rows)
    if arguments.plot:
        from pynccl.tools.lab import plots

        plots.draw_lanes(arguments.plot, rows)
    return rows
