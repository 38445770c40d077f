"""``pynccl replay``: replays recorded communication and prints its timings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

from pynccl.tools.replay.run import Result, Row, replay
from pynccl.tools.text import columns
from pynccl.tools.trace.chrome import load

__all__ = ["add_arguments", "run"]

_COLUMNS: dict[str, Callable[[Row], str]] = {
    "kind": lambda row: row.kind,
    "ranks": lambda row: str(row.nranks),
    "bytes": lambda row: str(row.nbytes),
    "replayed": lambda row: str(row.replayed_nbytes),
    "calls": lambda row: str(row.calls),
    "recorded us": lambda row: "-" if row.recorded is None else f"{row.recorded * 1e6:.1f}",
    "replayed us": lambda row: f"{row.replayed * 1e6:.1f}",
    "ratio": lambda row: "-" if row.ratio is None else f"{row.ratio:.2f}",
    "busbw GB/s": lambda row: "-" if row.busbw is None else f"{row.busbw:.3f}",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a recording (PYNCCL_RECORD) or trace of each process",
    )
    parser.add_argument("--provider", choices=("host", "cuda"), default="host")
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="replay the first N processes, and reduce communicators to these (default: all)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for counts, which stay at least 1"
    )
    parser.add_argument(
        "--speed",
        choices=("max", "recorded"),
        default="max",
        help="max, or recorded to preserve the time between calls (default: max)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        help="time limit of every operation, in seconds (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if ranks differ, hang or fail.

    Raises:
        ReplayError, TraceError, LibraryNotFoundError, OSError: nothing can be replayed.
        LaunchError: a rank died.
    """
    result = replay(
        [trace for path in arguments.files for trace in load(path)],
        provider=arguments.provider,
        ranks=arguments.ranks,
        scale=arguments.scale,
        speed=arguments.speed,
        timeout=arguments.timeout,
    )
    if arguments.json:
        print(json.dumps({"ok": result.ok, **asdict(result)}, indent=2))
    else:
        print("\n".join(_text(result)))
    return 0 if result.ok else 1


def _text(result: Result) -> Iterator[str]:
    yield from (f"note: {note}" for note in result.notes)
    if result.rows:
        yield columns(result.rows, _COLUMNS.items())
        yield f"{result.operations} operations in {result.seconds:.3f} s"
    if result.findings:
        yield "the ranks differ:"
        yield from (f"  {finding.text}" for finding in result.findings)
    for rank, text in result.failures.items():
        yield f"process {rank} failed: {text}"
