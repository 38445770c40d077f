"""Proves that benchmarks.train measures DDP and FSDP2 over both backends, and refuses losses that
differ between them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.tier import FULL

_ROOT = Path(__file__).parents[2]

pytest.importorskip("torch")


@pytest.mark.skipif(not FULL, reason="it starts a dozen ranks: `make test-all`")
def test_every_column_is_measured(tmp_path: Path) -> None:
    from benchmarks.train import COLUMNS
    from pynccl.c10d.build import build

    build()  # takes longer than the command may
    command = [sys.executable, "-m", "benchmarks.train", "--ranks", "2", "--steps", "2"]
    command += ["--width", "8", "--layers", "1", "--out", str(tmp_path)]
    done = run_command(command, _ROOT, dict(os.environ), timeout=120)
    assert done.returncode == 0, done.stderr
    head, _, *rows, _ = done.stdout.splitlines()[-5:]
    assert [cell.strip() for cell in head.split("|")[3:-1]] == list(COLUMNS)
    assert [row.split("|")[1:3] for row in rows] == [[" 2 ", " DDP "], [" 2 ", " FSDP2 "]]
    for row in json.loads((tmp_path / "train.json").read_text())["rows"]:
        assert {name: len(steps) for name, steps in row["seconds"].items()} == {
            "fake": 2,
            "gloo": 2,
            "pynccl": 2,
        }
        assert row["engines"] == {name: name for name in ("fake", "gloo", "pynccl")}


def test_table() -> None:
    from benchmarks.train import Result, table

    seconds = {"fake": [0.1, 0.1, 0.1], "gloo": [0.13, 0.14, 0.9], "pynccl": [0.11, 0.11, 0.1]}
    line = table([Result(4, "DDP", seconds, 1.0, {})]).splitlines()[-1]
    assert line == "| 4 | DDP | 140.00 | 110.00 | 100.00 | 40.00 | 10.00 | 0.25 |"


def test_losses_that_differ_are_refused() -> None:
    from benchmarks.ranks import BenchmarkError
    from benchmarks.train import check_losses

    check_losses("DDP", 3, 1.0, 1.0000001)
    for wrong in (1.1, float("nan")):
        with pytest.raises(BenchmarkError, match=r"DDP, step 3: .*over gloo 1\.0"):
            check_losses("DDP", 3, 1.0, wrong)
