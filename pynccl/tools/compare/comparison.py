"""The comparison of two runs of a script: the output of the ranks and the times of operations."""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pynccl.tools.text import table

__all__ = ["Comparison", "Row", "read"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ROUNDING = 1e-4  # relative, of numbers that a script prints
_LONGEST = 120  # characters of a line
_NO_OPERATIONS = (
    "no operation of a process group was found: the script must call torch.distributed in the "
    "process that torchrun starts, not in child processes"
)


@dataclass(frozen=True)
class Row:
    """An operation of the script.

    Attributes:
        operation: its name, such as ``"all_reduce"``.
        calls: the number of calls of a rank.
        seconds: the time of a call over each backend: the median over the calls of the minimum over
            the ranks, which is that of the last rank to call. That of an asynchronous operation
            includes its completion. NaN if a backend did not run it.
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
        output: begins with ``"equal"``, or describes the first difference.
    """

    backends: tuple[str, str]
    ranks: int
    rows: list[Row]
    seconds: tuple[float, float]
    output: str

    @property
    def equal(self) -> bool:
        """Whether the ranks printed the same, except for rounding and for varying lines."""
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
        operations = table(header, rows) if rows else _NO_OPERATIONS
        return "\n".join([operations, f"the script: {times}", f"output: {self.output}"])

    def json(self) -> dict[str, Any]:
        """Return the comparison for JSON, which has no NaN: a missing time is None."""
        value = asdict(self)
        for row in value["rows"]:
            row["seconds"] = [None if math.isnan(one) else one for one in row["seconds"]]
        return value


def _times(seconds: tuple[float, float]) -> tuple[str, str, str]:
    first, second = seconds
    texts = ["-" if math.isnan(one) else f"{one * 1e6:.1f}" for one in seconds]
    ratio = first / second if second else math.nan
    return texts[0], texts[1], "-" if math.isnan(ratio) else f"{ratio:.2f}"


def read(
    folder: Path, backends: tuple[str, str], ranks: int, again: Path | None = None
) -> Comparison:
    """Read the files of the workers.

    Args:
        folder: the files of a run over each backend.
        backends: their names.
        ranks: the number of ranks.
        again: the files of a second run over the first backend. Lines that differ between those two
            runs as well are not compared.
    """
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
    output = _compare(folder, backends, ranks, again)
    return Comparison(backends, ranks, rows, (first, second), output)


def _median(ranks: list[list[float]]) -> float:
    """Return the median over the calls of the minimum over the ranks."""
    taking_part = [seconds for seconds in ranks if seconds]
    least = [min(seconds) for seconds in zip(*taking_part, strict=False)]
    return statistics.median(least) if least else math.nan


def _compare(folder: Path, backends: tuple[str, str], ranks: int, again: Path | None) -> str:
    own, other = (_lines(folder, backend, ranks) for backend in backends)
    differing = _differing(own, other)
    varying = set(_differing(own, _lines(again, backends[0], ranks))) if again else set()
    for rank, index in differing:
        if (rank, index) not in varying:
            texts = [
                f"{backend} {_shown(lines[rank], index)}"
                for backend, lines in zip(backends, (own, other), strict=True)
            ]
            return f"differs in line {index + 1} of rank {rank}: {', '.join(texts)}"
    count = sum(map(len, own))
    if differing:
        rank, index = differing[0]
        text = (
            f"also differ between two runs over {backends[0]}, first line {index + 1} of rank "
            f"{rank}: {_shown(own[rank], index)}"
        )
        if len(differing) < count:
            return f"equal but for {len(differing)} of {count} lines, which {text}"
        return f"not comparable: all {count} lines {text}"
    if not count:
        return "equal, but the script prints nothing"
    return "equal" if own == other else "equal but for rounding"


def _lines(folder: Path, backend: str, ranks: int) -> list[list[str]]:
    """Return the lines that each rank printed."""
    paths = [folder / f"{backend}.{rank}.out" for rank in range(ranks)]
    return [path.read_text("utf-8", "backslashreplace").splitlines() for path in paths]


def _differing(first: list[list[str]], second: list[list[str]]) -> list[tuple[int, int]]:
    """Return rank and index of each line that differs by more than rounding."""
    return [
        (rank, index)
        for rank, pair in enumerate(zip(first, second, strict=True))
        for index, (a, b) in enumerate(itertools.zip_longest(*pair))
        if a is None or b is None or not _close(a, b)
    ]


def _shown(lines: list[str], index: int) -> str:
    if index >= len(lines):
        return "nothing"
    line = lines[index]
    return repr(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...")


def _close(first: str, second: str) -> bool:
    """Return whether two lines are equal, or differ in the last digits of numbers only."""
    if first == second:
        return True
    if _NUMBER.sub("0", first) != _NUMBER.sub("0", second):
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=_ROUNDING, abs_tol=1e-6) for a, b in pairs)
