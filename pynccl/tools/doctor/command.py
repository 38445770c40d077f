"""The command ``pynccl doctor``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from pynccl.libraries import PROVIDERS
from pynccl.tools.doctor import topology
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
    parser.add_argument(
        "--topology",
        nargs="?",
        const="",
        metavar="FILE",
        help="print only the links in a topology file of NCCL, by default NCCL_TOPO_DUMP_FILE",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 0 without problems, 1 with problems, 2 for wrong arguments.
    """
    try:
        if arguments.topology is not None:
            return _print_topology(arguments.topology, as_json=arguments.json)
        found = diagnose(arguments.provider, arguments.timeout)
    except (ValueError, OSError) as error:
        print(f"pynccl doctor: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.json(), indent=2) if arguments.json else found.text())
    return 1 if found.problems else 0


def _print_topology(path: str, *, as_json: bool) -> int:
    if not path and not (path := os.environ.get("NCCL_TOPO_DUMP_FILE", "")):
        raise ValueError("--topology: no file, and NCCL_TOPO_DUMP_FILE is not set")
    found = topology.load(path)
    findings = list(found.findings())
    if as_json:
        value = {**asdict(found), "links": found.links(), "findings": [asdict(f) for f in findings]}
        print(json.dumps(value, indent=2))
        return 0
    lines = [found.text(), ""]
    for finding in findings:
        lines.append(f"unusual: {finding.text}")
        lines += [f"  -> {finding.advice}"] if finding.advice else []
    print("\n".join(lines if findings else [*lines, "nothing unusual"]))
    return 0
