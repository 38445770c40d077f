"""How long it takes to go on with other ranks: shrink, recover, grow, and abort with a new init.

    python -m benchmarks.recovery
    python -m benchmarks.recovery --ranks 2,4,8,16 --repeats 10

Prints a table in milliseconds: medians over the repeats of the slowest rank's time. The ranks are
processes on CPUs. After each change an all_reduce of the new communicator is checked.

``recover`` is the call, after a rank was killed and the others have raised. ``killed to recovered``
is from the kill to the communicator without the rank: it includes the time in which the others
notice the death. Each of its repeats has processes of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from benchmarks import machine
from benchmarks.recovery_rank import COLUMNS, Times, measure
from pynccl.testing import Launcher

__all__ = ["main", "table"]

_TIMEOUT = 300.0  # seconds for the processes of one repeat


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description="the time to go on with other ranks")
    parser.add_argument("--ranks", default="2,4,8,16", help="world sizes (2,4,8,16)")
    parser.add_argument("--repeats", type=int, default=5, help="of each number (5)")
    arguments = parser.parse_args(argv)
    for name, value in machine.rows(machine.inspect("host")):
        print(f"{name}: {value}")
    sizes = [int(size) for size in arguments.ranks.split(",")]
    print("\n" + "\n".join(table({size: _measure(size, arguments.repeats) for size in sizes})))
    return 0


def table(measured: dict[int, Times]) -> list[str]:
    """The lines of a table in Markdown: a row for each number of ranks."""
    lines = ["| ranks | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for size, times in measured.items():
        cells = [_milliseconds(times.get(column, [])) for column in COLUMNS]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines


def _measure(size: int, repeats: int) -> Times:
    """The slowest rank's seconds for each repeat, by column."""
    slowest: Times = {}
    with Launcher() as launcher:
        for _ in range(repeats):
            with launcher.start(
                size, measure, fresh=True, timeout=_TIMEOUT, grace=_TIMEOUT, unique_ids=4
            ) as run:
                outcomes = run.outcomes()
            for outcome in outcomes[:-1]:  # the last rank is killed
                if not outcome.ok:
                    raise SystemExit(f"a rank failed: {outcome.died}{outcome.trace}")
            for column in COLUMNS:
                of_ranks = [outcome.value.get(column, []) for outcome in outcomes[:-1]]
                slowest.setdefault(column, []).extend(max(t) for t in zip(*of_ranks, strict=True))
    return slowest


def _milliseconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.1f}" if seconds else ""


if __name__ == "__main__":
    sys.exit(main())
