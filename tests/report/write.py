"""Writes the outcomes of tests as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import Machine, rows

_OUTCOMES = ("passed", "failed", "hung", "died", "skipped", "not run")
_WELL = ("passed", "skipped")
_SLOWEST = 10
_LINES = 25  # of a failure's text, its end


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Attributes:
        test: pytest's name of it.
        outcome: one of passed, failed, hung, died (with all of pytest), skipped, not run.
        why: the reason, where it did not pass.
        seconds: how long it took.
        worlds: the worlds that it started: ranks, and whether they were threads of one process.
    """

    test: str
    outcome: str
    why: str
    seconds: float
    worlds: list[tuple[int, bool]]

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def write_report(
    stem: Path, date: str, machine: Machine, outcomes: list[Outcome], seconds: float
) -> bool:
    """Write ``stem.md`` and ``stem.json``; whether all passed that were not skipped.

    Args:
        stem: path without the suffix.
        date: ISO 8601.
        machine: where they ran.
        outcomes: in the order of the tests.
        seconds: what all of it took.
    """
    counts = Counter(outcome.outcome for outcome in outcomes)
    well = bool(outcomes) and set(counts) <= set(_WELL) and counts["passed"] > 0
    parts = [
        f"# Tests on {machine.gpus[0] if machine.gpus else 'CPUs'}, {date}",
        _verdict(machine, counts, seconds),
        "## Machine\n" + _table(("what", "which"), rows(machine)),
        "## Worlds\n" + _worlds(outcomes),
        "## Results\n" + _by_file(outcomes),
    ]
    bad = [outcome for outcome in outcomes if outcome.outcome not in (*_WELL, "not run")]
    if bad:
        parts.append("## What did not pass\n" + "\n\n".join(map(_failure, bad)))
    for title, kind in (("What was skipped, and why", "skipped"), ("What did not run", "not run")):
        if counts[kind]:
            parts.append(f"## {title}\n" + _reasons(o for o in outcomes if o.outcome == kind))
    parts.append("## The slowest\n" + _slowest(outcomes))
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_name(f"{stem.name}.md").write_text("\n\n".join(parts) + "\n")
    content = {
        "date": date,
        "machine": dataclasses.asdict(machine),
        "seconds": round(seconds, 1),
        "tests": [dataclasses.asdict(outcome) for outcome in outcomes],
    }
    stem.with_name(f"{stem.name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return well


def _verdict(machine: Machine, counts: Counter[str], seconds: float) -> str:
    what = ", ".join(f"{counts[kind]} {kind}" for kind in _OUTCOMES if counts[kind]) or "no test"
    text = f"**{what}**, in {seconds:.0f} s."
    if machine.gpus:
        text += (
            f"\n\nRanks beyond the {len(machine.gpus)} GPU share one: in processes that take "
            "turns on it, and in threads where NCCL is 2.30 or newer."
        )
    else:
        text += "\n\nA dry run: the tests that need a GPU, over hostnccl. It says nothing of NCCL."
    return text


def _table(head: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    head = tuple(head)
    text = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    text += [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]
    return "\n".join(text)


def _worlds(outcomes: list[Outcome]) -> str:
    """For each size, how many tests that started such a world ended how."""
    tests: dict[tuple[int, bool], list[Outcome]] = {}
    for outcome in outcomes:
        for world in outcome.worlds:
            tests.setdefault(world, []).append(outcome)
    lines = [
        (nranks, "threads of a process" if threads else "processes", *_passed(tests[world]))
        for world in sorted(tests)
        for nranks, threads in [world]
    ]
    return _table(("ranks", "as", "tests", "passed"), lines)


def _passed(outcomes: list[Outcome]) -> tuple[int, int]:
    return len(outcomes), sum(outcome.outcome == "passed" for outcome in outcomes)


def _by_file(outcomes: list[Outcome]) -> str:
    files = dict.fromkeys(outcome.file for outcome in outcomes)
    lines = []
    for file in files:
        mine = [outcome for outcome in outcomes if outcome.file == file]
        counts = Counter(outcome.outcome for outcome in mine)
        seconds = sum(outcome.seconds for outcome in mine)
        lines.append((file, *(counts[kind] or "" for kind in _OUTCOMES), f"{seconds:.1f}"))
    return _table(("file", *_OUTCOMES, "seconds"), lines)


def _failure(outcome: Outcome) -> str:
    text = "\n".join(outcome.why.splitlines()[-_LINES:])
    return f"`{outcome.test}` ({outcome.outcome}):\n\n```\n{text}\n```"


def _reasons(outcomes: Iterable[Outcome]) -> str:
    """The reasons, each with its tests by function."""
    reasons: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        function = outcome.test.partition("[")[0]
        reasons.setdefault(outcome.why, Counter())[function] += 1
    lines = [
        (why, ", ".join(f"`{function}` x {number}" for function, number in counts.items()))
        for why, counts in reasons.items()
    ]
    return _table(("why", "tests"), lines)


def _slowest(outcomes: list[Outcome]) -> str:
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:_SLOWEST]
    return _table(("seconds", "test"), ((f"{o.seconds:.1f}", f"`{o.test}`") for o in slowest))
