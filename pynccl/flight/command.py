"""``pynccl flight``: analyzes dumps."""

from __future__ import annotations

import argparse
import json
import sys

from pynccl.flight.analysis import analyse
from pynccl.flight.dump import DumpError, load

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="the dumps, one per process")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if a rank waits or differs, 2 if a file cannot be read.
    """
    try:
        report = analyse([load(path) for path in arguments.files])
    except (DumpError, OSError) as error:
        print(f"pynccl flight: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.json(), indent=2) if arguments.json else report.text())
    return 1 if report.findings else 0
