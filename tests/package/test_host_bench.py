"""Proves that benchmarks.host checks and times hostnccl and the others, beside busy processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_command

_ROOT = Path(__file__).parents[2]


def test_rows_beside_a_busy_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks.host", "--quick", "--out", str(tmp_path)]
    command += ["--ranks", "2", "--operations", "all_reduce", "--sizes", "4,64K"]
    command += ["--libraries", "hostnccl,gloo", "--beside", "1"]
    done = run_command(command, _ROOT, os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "gloo: hostnccl is ahead in " in done.stdout
    report = json.loads((tmp_path / "host.json").read_text())
    assert report["beside"] == 1
    measured = [(row["bytes"], row["library"]) for row in report["rows"]]
    assert measured == [
        (size, library) for size in (4, 2**16) for library in ("hostnccl", "gloo", "copy")
    ]
    assert all(row["seconds"] > 0 and row["spread"] >= 1 for row in report["rows"])
