"""``pynccl flight``: analyzes or converts dumps."""

from __future__ import annotations

import argparse
import json
import sys

from pynccl.flight import torch_format
from pynccl.flight.analysis import analyse
from pynccl.flight.dump import DumpError, load

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="the dumps, one per process")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print the findings as JSON")
    how.add_argument(
        "--torch",
        metavar="PREFIX",
        help="write PREFIX0, PREFIX1, ... in the format of torch's FlightRecorder instead",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if a rank waits or differs, 2 if a file cannot be read.
    """
    try:
        dumps = [load(path) for path in arguments.files]
        if arguments.torch is not None:
            for path in torch_format.write(dumps, arguments.torch):
                print(path)
            return 0
        report = analyse(dumps)
    except (DumpError, OSError) as error:
        print(f"pynccl flight: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.json(), indent=2) if arguments.json else report.text())
    return 1 if report.findings else 0
