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
    figures = json.loads((tmp_path / "train.json").read_text())["rows"]
    assert [figure["library"] for figure in figures] == 2 * ["fake", "gloo", "pynccl"]
    assert all(len(figure["samples"]) == 2 for figure in figures)


def test_row() -> None:
    from benchmarks.train import row

    about = {"ranks": 4, "training": "DDP"}
    seconds = {"fake": 0.1, "gloo": 0.14, "pynccl": 0.11}
    found = row([{**about, "library": name, "seconds": each} for name, each in seconds.items()])
    assert list(found.values()) == pytest.approx([4, "DDP", 140, 110, 100, 40, 10, 0.25])


def test_losses_that_differ_are_refused() -> None:
    from benchmarks.ranks import BenchmarkError
    from benchmarks.train import check_losses

    check_losses("DDP", 3, 1.0, 1.0000001)
    for wrong in (1.1, float("nan")):
        with pytest.raises(BenchmarkError, match=r"DDP, step 3: .*over gloo 1\.0"):
            check_losses("DDP", 3, 1.0, wrong)
