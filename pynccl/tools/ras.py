"""``pynccl ras``: the communicators of a running job, from NCCL's RAS service."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from pynccl.flight.merged import ranks_text
from pynccl.flight.ras import Communicator, Query, Report
from pynccl.tools.text import table

__all__ = ["add_arguments", "run"]

_MOST_PLACES = 16  # locations of missing ranks to print


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="a process of the job (default: NCCL_RAS_ADDR, or localhost:28028)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: 1 if ranks are missing or differ.

    Raises:
        RasError: there is no answer.
    """
    report = Query(arguments.address).result()
    print(json.dumps(_json(report), indent=2) if arguments.json else _text(report))
    return 1 if any(one.missing().text for one in report.communicators) else 0


def _json(report: Report) -> dict[str, object]:
    value = asdict(report)
    for one, fields in zip(report.communicators, value["communicators"], strict=True):
        missing = one.missing()
        fields["missing"] = {"ranks": missing.ranks, "text": missing.text}
    return value


def _text(report: Report) -> str:
    lines = [f"NCCL {report.nccl_version}, {report.timestamp}"]
    for one in report.communicators:
        lines += ["", f"communicator {one.hash} of {one.size} ranks", _ranks(one)]
        missing = one.missing()
        lines += [f"  {text}" for text in missing.text.split("; ") if text]
        lines += [] if missing.text else ["  RAS sees no difference"]
        places = [
            f"rank {rank.rank}: process {rank.pid} on {rank.host}, GPU {rank.cuda_dev}"
            for rank in [*one.ranks, *one.missing_ranks]
            if rank.rank in (missing.ranks or ())
        ]
        lines += [f"    {place}" for place in places[:_MOST_PLACES]]
    lines += [] if report.communicators else ["there are no communicators"]
    return "\n".join(lines)


def _ranks(one: Communicator) -> str:
    """A table of the ranks, grouped by their state and counters."""
    counters = {rank.rank: rank.collective_counts for rank in one.ranks}
    names = dict.fromkeys(name for counts in counters.values() for name in counts)
    used = [name for name in names if any(counts.get(name) for counts in counters.values())]
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, state in one.states().items():
        counts = counters.get(rank)
        cells = ["-" if counts is None else str(counts.get(name, 0)) for name in used]
        groups.setdefault((state, *cells), []).append(rank)
    rows = [[ranks_text(ranks).partition(" ")[2], *cells] for cells, ranks in groups.items()]
    return table(["ranks", "state", *used], rows, left=(0, 1))
