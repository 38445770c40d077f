"""Proves that benchmarks.recovery measures every column."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.recovery import COLUMNS, medians
from tests.support.commands import run_command

_ROOT = Path(__file__).parents[2]


def test_every_column_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.recovery", "--ranks", "3", "--repeats", "2"]
    done = run_command(command, _ROOT, dict(os.environ), timeout=120)
    assert done.returncode == 0, done.stderr
    head, _, row = done.stdout.splitlines()[-3:]
    assert [cell.strip() for cell in head.split("|")[2:-1]] == list(COLUMNS)
    assert all(0 < float(cell) < 10_000 for cell in row.split("|")[2:-1])


def test_medians() -> None:
    found = medians({"init": [0.003, 0.001, 0.002]})
    assert found["init"] == 2
    assert found["grow"] is None
