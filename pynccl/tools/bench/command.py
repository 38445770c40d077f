"""The command ``pynccl bench``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pynccl.libraries import PROVIDERS, default_provider
from pynccl.testing import Launcher, LaunchError
from pynccl.tools.bench.ranks import OPERATIONS, Row, measure
from pynccl.tools.lab.row import Timing
from pynccl.tools.text import (
    list_of,
    one_of,
    parse_size,
    positive,
    significant,
    size_text,
    table,
)

__all__ = ["add_arguments", "run", "write"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--ranks", type=positive, default=2, help="number of processes (default: 2)"
    )
    parser.add_argument(
        "--operations",
        type=list_of(one_of(OPERATIONS)),
        default=list(OPERATIONS),
        help=f"comma-separated list of {', '.join(OPERATIONS)} (default: all)",
    )
    parser.add_argument(
        "--sizes",
        type=list_of(parse_size),
        default=[2**10, 2**16, 2**22],
        help="bytes of the larger buffer of a rank (default: 1K,64K,4M)",
    )
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        default=default_provider(),
        help="host on CPUs, compared with gloo; cuda on GPUs, compared with nccl "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=positive, default=15, help="samples of each library (default: 15)"
    )
    parser.add_argument("--json", type=Path, help="also write all samples to a JSON file")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if a result is wrong or a rank failed, 2 for wrong arguments.
    """
    if importlib.util.find_spec("torch") is None:
        print("pynccl bench: needs torch, which is not installed", file=sys.stderr)
        return 2
    pairs = [(name, size) for name in arguments.operations for size in arguments.sizes]
    try:
        with Launcher() as launcher:
            rows = launcher.launch(
                arguments.ranks,
                measure,
                (pairs, arguments.repeats),
                provider=arguments.provider,
                timeout=None,
                env={"OMP_NUM_THREADS": "1"},
            )[0]
    except LaunchError as error:
        print(f"pynccl bench: {error}", file=sys.stderr)
        return 1
    print(write(rows, "nccl" if arguments.provider == "cuda" else "gloo"))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if any(row.wrong for row in rows) else 0


def write(rows: Sequence[Row], backend: str) -> str:
    """Format the rows as a table, followed by a summary and by the wrong results."""
    header = ("operation", "size", "pynccl us", "spread", f"{backend} us", "spread", "ratio")
    cells, ratios = [], {}
    for row in rows:
        times = [_median_and_spread(samples) for samples in (row.pynccl, row.torch)]
        ratio = "-"
        if times[0] and times[1]:
            name = f"{row.operation} {size_text(row.nbytes)}"
            ratios[name] = times[1][0] / times[0][0]
            ratio = significant(ratios[name], 2)
        texts = [
            text
            for found in times
            for text in (
                (significant(found[0] * 1e6, 2), f"{found[1]:.0%}") if found else ("-", "-")
            )
        ]
        cells.append([row.operation, size_text(row.nbytes), *texts, ratio])
    lines = [table(header, cells)]
    if ratios:
        behind = [f"{name} ({ratio:.2f})" for name, ratio in ratios.items() if ratio < 1]
        lines.append(
            f"pynccl is faster in {len(ratios) - len(behind)} of {len(ratios)} rows"
            + (f", slower in {', '.join(behind)}" if behind else "")
        )
    lines += [f"{row.operation} {size_text(row.nbytes)}: {row.wrong}" for row in rows if row.wrong]
    return "\n".join(lines)


def _median_and_spread(samples: Sequence[float]) -> tuple[float, float] | None:
    """The median, and the interquartile range as a share of it; None without samples."""
    if not samples:
        return None
    timing = Timing(tuple(samples))
    low, high = timing.quartiles
    return timing.median, (high - low) / timing.median
