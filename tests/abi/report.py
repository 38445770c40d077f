"""Prints the result of each check, and counts failures."""

from __future__ import annotations

from collections.abc import Iterable


class Report:
    """Prints the results of checks as they arrive, and counts the failures."""

    def __init__(self) -> None:
        self.failures = 0

    def check(self, title: str, count: int, noun: str, problems: Iterable[str]) -> None:
        """Print the result of a check.

        Args:
            title: The subject of the check.
            count: The number of comparisons; zero is a failure.
            noun: The name of the compared items, in the plural.
            problems: A line for each difference.
        """
        problems = list(problems)
        if count == 0:
            problems.append("nothing was compared")
        print(f"{'FAIL' if problems else 'ok  '}  {title}: {count} {noun}", flush=True)
        for problem in problems:
            print(f"        {problem}", flush=True)
        self.failures += len(problems)
