"""What the checks found: a line for each on standard output, and whether all was well."""

from __future__ import annotations

from collections.abc import Iterable


class Report:
    """Prints the outcome of every check at once and remembers failures."""

    def __init__(self) -> None:
        self.failures = 0

    def check(self, title: str, count: int, noun: str, problems: Iterable[str]) -> None:
        """One check.

        Args:
            title: What was compared with what.
            count: How many things were compared; to have compared nothing is a failure.
            noun: What they are, in the plural.
            problems: One line for each thing that is wrong.
        """
        problems = list(problems)
        if count == 0:
            problems.append("nothing was compared")
        print(f"{'FAIL' if problems else 'ok  '}  {title}: {count} {noun}", flush=True)
        for problem in problems:
            print(f"        {problem}", flush=True)
        self.failures += len(problems)
