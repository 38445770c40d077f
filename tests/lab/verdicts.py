"""Counts right and wrong verdicts beside CPU-bound processes: python -m tests.lab.verdicts.

A verdict is right, "not certain" or wrong.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter

from benchmarks.ranks import busy_processes
from pynccl.tools.lab import Row
from pynccl.tools.text import table
from tests.lab import planted
from tests.support.launcher import Launcher

__all__ = ["main", "measure"]

_OUTCOMES = ("right", "not certain", "wrong")


def measure(launch: Launcher, name: str) -> tuple[str, Row]:
    """Measure a planted overlap on two ranks; return the outcome and the row."""
    expected, make, args = planted.VERDICTS[name]
    row: Row = launch(2, planted.measure, make, args)[0]
    if row.verdict.kind == "not certain":
        return "not certain", row
    return "right" if (row.verdict.kind, row.verdict.reason) == expected else "wrong", row


def main() -> int:
    """Run the campaign and print a table.

    Returns:
        The exit status: 1 if a verdict is wrong.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="of each overlap (default: 20)")
    parser.add_argument("--busy", type=int, default=1, help="CPU-bound processes (default: 1)")
    parser.add_argument("--names", nargs="+", choices=planted.VERDICTS, default=planted.VERDICTS)
    options = parser.parse_args()
    rows = []
    with busy_processes(options.busy), Launcher() as launcher:
        for name in options.names:
            counts: Counter[str] = Counter()
            for _ in range(options.count):
                outcome, row = measure(launcher, name)
                counts[outcome] += 1
                if outcome == "wrong":
                    print(f"{name}: {row.verdict}", row.as_dict(), file=sys.stderr, flush=True)
            rows.append([name, *(counts[outcome] for outcome in _OUTCOMES)])
            print(*rows[-1], file=sys.stderr, flush=True)
    totals = [sum(row[i + 1] for row in rows) for i in range(len(_OUTCOMES))]
    print(table(["planted", *_OUTCOMES], [[*map(str, row)] for row in [*rows, ["all", *totals]]]))
    return 1 if totals[-1] else 0


if __name__ == "__main__":
    # Ranks import it by this name.
    sys.exit(importlib.import_module("tests.lab.verdicts").main())
