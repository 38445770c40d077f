"""The command ``pynccl explain``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pynccl import nccl
from pynccl._internal import plugin
from pynccl.errors import MissingFunctionError
from pynccl.libraries import load
from pynccl.tools.lab import world
from pynccl.tools.text import parse_size, size_text, table

__all__ = ["add_arguments", "explain_sizes", "run", "write_table"]

_SIZES = [4**exponent for exponent in range(5, 16)]  # 1 KiB to 1 GiB


def _sizes(text: str) -> list[int]:
    try:
        return [parse_size(part) for part in text.split(",") if part]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("operation", nargs="?", choices=plugin.FUNCTIONS, default="all_reduce")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=_SIZES,
        help="bytes of the larger buffer (default: 1K,4K,...,1G)",
    )
    parser.add_argument("--ranks", type=int, help="GPUs of this machine (default: all)")
    parser.add_argument("--tuning", type=Path, help="a tuning file with choices to force")
    parser.add_argument("--json", type=Path, help="also write the rows to a JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 2 for wrong arguments, and if NCCL cannot explain its choices.
    """
    env = {"PYNCCL_EXPLAIN": "1"}
    try:
        if arguments.tuning:
            plugin.read_rules(arguments.tuning)  # report its errors here rather than in a rank
            env["PYNCCL_TUNING"] = str(arguments.tuning.resolve())
        nranks = arguments.ranks or len(load("cuda").device_names())
        if nranks < 2:
            raise ValueError(f"--ranks: {nranks} is below 2: NCCL chooses nothing for one rank")
        if world.is_under_torchrun():
            nccl.explain(arguments.tuning)
        args = (arguments.operation, arguments.sizes)
        rows = world.run(nranks, explain_sizes, args, "cuda", env)
    except (ValueError, OSError, MissingFunctionError, nccl.LibraryNotFoundError) as error:
        print(f"pynccl explain: {error}", file=sys.stderr)
        return 2
    if rows is None:
        return 0  # a rank of torchrun other than rank 0
    if isinstance(rows, str):
        print(f"pynccl explain: {rows}", file=sys.stderr)
        return 2
    print(write_table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([_as_dict(row) for row in rows], indent=1) + "\n")
    return 0


def explain_sizes(
    comm: nccl.Communicator, operation: str, sizes: Sequence[int]
) -> list[nccl.Explanation] | str:
    """Explain an operation at several sizes, on all ranks.

    Returns:
        The explanations, or why there are none.
    """
    blocks = comm.nranks if operation in ("all_gather", "reduce_scatter") else 1
    rounded = [max(nbytes // blocks, 1) * blocks for nbytes in sizes]
    try:
        return [comm.explain(operation, nbytes) for nbytes in rounded]
    except MissingFunctionError as error:
        return str(error)


def write_table(rows: Sequence[nccl.Explanation]) -> str:
    """Format explanations of one operation: one row for each size, ``*`` at the choice."""
    first = rows[0]
    ways = list(dict.fromkeys(way for row in rows for way in row.costs))
    lines = []
    for row in rows:
        chosen = (row.algorithm, row.protocol)
        cells = [
            f"{row.costs[way]:.1f}{'*' if way == chosen else ' '}" if way in row.costs else "- "
            for way in ways
        ]
        least = min(row.costs, key=lambda way: row.costs[way])
        note = "not usable" if row.rule == 0 else f"rule {row.rule}" if row.rule else ""
        if row.rule and least != chosen:
            note += f" (least: {' '.join(least)})"
        lines.append([size_text(row.nbytes), *cells, *chosen, note])
    header = ["size", *(f"{a} {p} " for a, p in ways), "algorithm", "protocol", "forced"]
    if not any(line[-1] for line in lines):
        header, lines = header[:-1], [line[:-1] for line in lines]
    title = f"{first.operation}, {first.nranks} ranks, NCCL {first.version}: microseconds, * chosen"
    left = range(len(ways) + 1, len(header))
    return f"{title}\n{table(header, lines, left=left)}"


def _as_dict(row: nccl.Explanation) -> dict[str, object]:
    fields = dataclasses.asdict(row)
    fields["costs"] = {f"{a} {p}": microseconds for (a, p), microseconds in row.costs.items()}
    return fields
