"""The comparison of two runs of a script: the output of the ranks and the times of operations."""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from pynccl.tools.text import table

__all__ = ["Comparison", "Row", "read"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ROUNDING = 1e-4  # relative, of numbers that a script prints


@dataclass(frozen=True)
class Row:
    """An operation of the script.

    Attributes:
        operation: its name, such as ``"all_reduce"``.
        calls: the number of calls of a rank.
        seconds: the time of a call over each backend: the median over the calls, each on the rank
            that came last and waited least. Of an asynchronous operation, it lasts until the
            operation is complete. NaN if a backend has not run it.
    """

    operation: str
    calls: int
    seconds: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Two runs of a script.

    Attributes:
        backends: the names of the two backends.
        ranks: the number of ranks.
        rows: the operations.
        seconds: the time of the script over each backend, the maximum over the ranks.
        output: ``"equal"``, ``"equal but for rounding"``, or the first difference.
    """

    backends: tuple[str, str]
    ranks: int
    rows: list[Row]
    seconds: tuple[float, float]
    output: str

    @property
    def equal(self) -> bool:
        """Whether the ranks printed the same, except for rounding."""
        return self.output.startswith("equal")

    def text(self) -> str:
        """Return the table and the verdict on the output."""
        first, second = self.backends
        header = ("operation", "calls", f"{first} us", f"{second} us", f"{first} / {second}")
        rows = [(row.operation, str(row.calls), *_times(row.seconds)) for row in self.rows]
        times = ", ".join(
            f"{seconds:.2f} s over {backend}"
            for backend, seconds in zip(self.backends, self.seconds, strict=True)
        )
        return "\n".join([table(header, rows), f"the script: {times}", f"output: {self.output}"])


def _times(seconds: tuple[float, float]) -> tuple[str, str, str]:
    first, second = seconds
    texts = ["-" if math.isnan(one) else f"{one * 1e6:.1f}" for one in seconds]
    return texts[0], texts[1], "-" if math.isnan(first / second) else f"{first / second:.2f}"


def read(folder: Path, backends: tuple[str, str], ranks: int) -> Comparison:
    """Read the files of the workers."""
    runs = [
        [json.loads((folder / f"{backend}.{rank}.json").read_text()) for rank in range(ranks)]
        for backend in backends
    ]
    names = sorted({name for run in runs for rank in run for name in rank["operations"]})
    rows = []
    for name in names:
        found = [[rank["operations"].get(name, []) for rank in run] for run in runs]
        calls = max(len(seconds) for run in found for seconds in run)
        first, second = (_median(run) for run in found)
        rows.append(Row(name, calls, (first, second)))
    first, second = (max(rank["seconds"] for rank in run) for run in runs)
    return Comparison(backends, ranks, rows, (first, second), _compare(folder, backends, ranks))


def _median(ranks: list[list[float]]) -> float:
    """Return the median over the calls of the least time of a rank."""
    taking_part = [seconds for seconds in ranks if seconds]
    least = [min(seconds) for seconds in zip(*taking_part, strict=False)]
    return statistics.median(least) if least else math.nan


def _compare(folder: Path, backends: tuple[str, str], ranks: int) -> str:
    rounded = False
    for rank in range(ranks):
        texts = [(folder / f"{backend}.{rank}.out").read_text() for backend in backends]
        if texts[0] == texts[1]:
            continue
        lines = [text.splitlines() for text in texts]
        for number in range(max(map(len, lines))):
            pair = [one[number] if number < len(one) else None for one in lines]
            if pair[0] is None or pair[1] is None or not _close(pair[0], pair[1]):
                described = ", ".join(
                    f"{backend} {'nothing' if line is None else repr(line)}"
                    for backend, line in zip(backends, pair, strict=True)
                )
                return f"differs in line {number + 1} of rank {rank}: {described}"
        rounded = True
    return "equal but for rounding" if rounded else "equal"


def _close(first: str, second: str) -> bool:
    """Return whether two lines are equal, or differ in the last digits of numbers only."""
    if _NUMBER.sub("0", first) != _NUMBER.sub("0", second):
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=_ROUNDING, abs_tol=1e-6) for a, b in pairs)
