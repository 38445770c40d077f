"""Proves that the runner of the GPU tests tells every outcome in its report, and that neither a
test that hangs nor one that kills pytest keeps the others from running.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]

_TESTS = """
import os
import time

import pytest

each = pytest.mark.parametrize("provider", ["host", "none"])


@each
def test_well(provider):
    assert provider == "host"


@each
def test_hangs(provider):
    time.sleep(100)


@each
def test_wrong(provider):
    assert provider == "other", __file__


@each
def test_dies(provider):
    os._exit(3)


@each
def test_skipped(provider):
    pytest.skip("for a reason")


def test_of_no_provider():
    raise AssertionError


@each
def test_last(provider):
    pass
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tests/report/run.py", "--device", "cpu", *arguments]
    return subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def test_every_outcome_is_told(tmp_path: Path) -> None:
    tests = tmp_path / "test_outcomes.py"
    tests.write_text(_TESTS)
    broken = tmp_path / "test_broken.py"
    broken.write_text("import a_module_that_is_not_there")
    done = _run(*("--out", str(tmp_path), "--each", "3", "--total", "60", str(broken), str(tests)))
    assert done.returncode == 1, done.stderr
    (written,) = tmp_path.glob("*-cpu-tests.json")
    report = json.loads(written.read_text())
    outcomes = {test["test"].partition("::")[2]: test for test in report["tests"]}
    assert "a_module_that_is_not_there" in outcomes.pop("")["why"]
    assert {name: outcome["outcome"] for name, outcome in outcomes.items()} == {
        "test_well[host]": "passed",
        "test_hangs[host]": "hung",
        "test_wrong[host]": "failed",
        "test_dies[host]": "died",
        "test_skipped[host]": "skipped",
        "test_last[host]": "passed",
    }
    assert "in test_hangs" in outcomes["test_hangs[host]"]["why"]
    assert outcomes["test_skipped[host]"]["why"] == "for a reason"
    text = written.with_suffix(".md").read_text()
    assert "2 passed, 2 failed, 1 hung, 1 died, 1 skipped" in text
    for whole in (text, written.read_text()):
        assert str(tmp_path) not in whole
        assert str(_ROOT) not in whole
        assert socket.gethostname() not in whole


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    tests = tmp_path / "test_outcomes.py"
    tests.write_text(_TESTS)
    done = _run("--out", str(tmp_path), "--each", "30", "--total", "8", str(tests))
    assert done.returncode == 1, done.stderr
    (written,) = tmp_path.glob("*-cpu-tests.json")
    outcomes = [test["outcome"] for test in json.loads(written.read_text())["tests"]]
    assert outcomes == ["passed", "hung", *["not run"] * 4]


def test_worlds_are_told(tmp_path: Path) -> None:
    """A few of the real tests, as on a GPU."""
    done = _run(
        "--out", str(tmp_path), "tests/test_plan.py", "-k", "test_values and not 1"
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("*-cpu-tests.md")
    text = written.read_text()
    for world in ("| 2 | processes | 1 | 1 |", "| 4 | threads of a process | 1 | 1 |"):
        assert world in text
    assert "| hostnccl | 2." in text
