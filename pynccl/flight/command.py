"""``pynccl flight``: analyzes dumps."""

from __future__ import annotations

import argparse
import json

from pynccl.flight.analysis import analyse
from pynccl.flight.dump import load

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="the dumps, one per process")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if a rank waits or differs.

    Raises:
        DumpError, OSError: a file cannot be read.
    """
    report = analyse([load(path) for path in arguments.files])
    print(json.dumps(report.json(), indent=2) if arguments.json else report.text())
    return 1 if report.findings else 0
