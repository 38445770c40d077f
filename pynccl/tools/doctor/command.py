"""The command ``pynccl doctor``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator

from pynccl.libraries import PROVIDERS
from pynccl.tools.doctor.diagnosis import TIMEOUT, diagnose

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        help="examine only this provider, which must be usable (default: both)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"seconds without progress after which a rank is ended (default: {TIMEOUT:g})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 0 without problems, 1 with problems.

    Raises:
        ValueError: the time limit is not above 0.
    """
    with _library_output_on_stderr():
        found = diagnose(arguments.provider, arguments.timeout)
    print(json.dumps(found.json(), indent=2) if arguments.json else found.text())
    return 1 if found.problems else 0


@contextlib.contextmanager
def _library_output_on_stderr() -> Iterator[None]:
    """Keep the standard output for the report: NCCL prints to it (NCCL_DEBUG=INFO)."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        os.close(output)
