"""pynccl explain with the double."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.commands import run_command


def _command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pynccl", "explain", *arguments]
    return run_command(command, tmp_path, os.environ, 120)


def test_command(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = _command(tmp_path, "--ranks", "4", "--json", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "all_reduce, 4 ranks, NCCL 2.32.3: microseconds, * chosen"
    assert next(line.split()[:2] for line in lines[2:]) == ["1", "KiB"]
    assert len(lines) == 2 + 11  # 1 KiB to 1 GiB
    for line, row in zip(lines[2:], json.loads(file.read_text()), strict=True):
        assert line.count("*") == 1
        least = min(row["costs"], key=lambda way: row["costs"][way])
        assert least == f"{row['algorithm']} {row['protocol']}"


def test_command_errors(tmp_path: Path) -> None:
    done = _command(tmp_path, "--ranks", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--ranks: 1 is below 2" in done.stderr


def test_command_with_a_tuning_file(tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    tree = {"operation": "all_gather", "algorithm": "ring", "protocol": "simple"}
    file.write_text(json.dumps({"rules": [tree, {**tree, "algorithm": "tree"}]}))
    done = _command(tmp_path, "all_gather", "--ranks", "2", "--sizes", "1K", "--tuning", str(file))
    assert done.stdout.splitlines()[-1].endswith("Ring       Simple    rule 1 (least: Ring LL)")
    file.write_text(json.dumps({"rules": [{**tree, "algorithm": "tree"}]}))
    done = _command(tmp_path, "all_gather", "--ranks", "2", "--sizes", "1K", "--tuning", str(file))
    assert done.stdout.splitlines()[-1].endswith("Ring       LL        not usable")
    done = _command(tmp_path, "--tuning", "missing.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.json" in done.stderr
