"""pynccl explain with the double."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from pynccl.tools.lab import algorithms
from pynccl.tools.lab.algorithms import Measured
from pynccl.tools.lab.row import Timing
from pynccl.tools.lab.variants import Variant
from tests.doubles import library
from tests.support.commands import run_command


def _command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pynccl", "explain", *arguments]
    return run_command(command, tmp_path, {**os.environ, **library.of_version("2.32")}, 120)


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


def test_command_with_measured_times(tmp_path: Path) -> None:
    """The time of the choice is that of its variant, else that of the default without a rule."""
    ring, default = Variant("ring", "ll"), Variant()
    times = {(1024, default): 9e-6, (1024, ring): 7e-6, (2048, ring): 8e-6, (2048, default): 6e-6}
    measured = [
        Measured("all_gather", 2, nbytes, way, Timing((seconds,)))
        for (nbytes, way), seconds in times.items()
    ]
    measured.append(Measured("all_gather", 2, 4096, ring, None, error="it failed"))
    file, rows = tmp_path / "sweep.json", tmp_path / "rows.json"
    algorithms.write_json(file, measured)
    arguments = ["all_gather", "--ranks", "2", "--sizes", "1K,2K,4K", "--measured", str(file)]
    done = _command(tmp_path, *arguments, "--json", str(rows))
    assert done.returncode == 0, done.stderr
    header, *lines = (re.split(r" {2,}", line.strip()) for line in done.stdout.splitlines()[1:])
    assert header[-4:] == ["measured", "algorithm", "protocol", "fastest"]
    assert [line[-4:] for line in lines[:2]] == [
        ["7.0", "Ring", "LL", "ring ll 7.0"],
        ["8.0", "Ring", "LL", "default 6.0"],
    ]
    assert lines[2][-2:] == ["Ring", "LL"]
    first = json.loads(rows.read_text())[0]["measured"]
    assert first == {"choice": 7.0, "fastest": "ring ll", "least": 7.0}
    file.write_text("[{}]")
    done = _command(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not a file of pynccl lab sweep --json: collective is missing" in done.stderr
