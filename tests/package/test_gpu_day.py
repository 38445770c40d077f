"""Proves that `make gpu-day` reports the outcome of every test, continues after tests that hang or
kill their process, leaves a complete report if it is stopped between two steps, and needs no
package that its machine lacks.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from tests import gpu_day
from tests.support.commands import run_command
from tests.support.tier import FULL

_TESTS = """
import os
import time

import pytest

pytestmark = pytest.mark.gpu


def test_well():
    pass


def test_hangs():
    time.sleep(100)


def test_wrong():
    assert not __file__


def test_dies():
    os._exit(3)


def test_skipped():
    pytest.skip("for a reason")


def test_last():
    pass
"""


def test_every_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_outcomes.py").write_text(_TESTS)
    (tmp_path / "test_broken.py").write_text("import a_module_that_is_not_there")
    monkeypatch.setattr(gpu_day, "_EACH", 3)
    day = gpu_day.Day(argparse.Namespace(device="cuda", out=tmp_path, k=""), stop=0.0)
    step = day._tests("tests", [str(tmp_path)], tmp_path)
    day._take(gpu_day._run(step, tmp_path / "log.txt", left=100))
    (line,) = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert line["status"] == "failed"
    assert line["tests"] == {"failed": 4, "passed": 2, "skipped": 1}
    texts = {re.split("::|/", name)[-1]: text for name, text in line["failures"].items()}
    assert "a_module_that_is_not_there" in texts["test_broken.py"]
    assert "crashed" in texts["test_hangs"]
    assert "crashed" in texts["test_dies"]
    assert "assert not" in texts["test_wrong"]
    assert "in test_hangs" in (tmp_path / "log.txt").read_text()
    report = (tmp_path / "report.md").read_text()
    assert "| tests | failed |" in report
    for whole in (report, json.dumps(line)):
        assert str(machine.ROOT) not in whole
        assert socket.gethostname() not in whole


def _day(out: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.gpu_day", "--device", "double", "--out", str(out)]
    return [*command, *arguments]


def test_an_interrupted_day(tmp_path: Path) -> None:
    command = _day(tmp_path, "--steps", "machine|rules")
    day = subprocess.Popen(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True)
    assert day.stdout is not None
    try:
        assert day.stdout.readline().startswith("passed")
    finally:
        children = Path(f"/proc/{day.pid}/task/{day.pid}/children").read_text().split()
        day.kill()
        day.wait()
        day.stdout.close()
        for child in map(int, children):
            for kill in (os.kill, os.killpg):  # it may not have its own session yet
                with contextlib.suppress(ProcessLookupError):
                    kill(child, signal.SIGKILL)
    assert "| machine | passed |" in (tmp_path / "report.md").read_text()
    (line,) = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert line["step"] == "machine"


@pytest.mark.skipif(not FULL, reason="ten minutes: `make gpu-day ARGS='--device double'`")
def test_a_dry_run(tmp_path: Path) -> None:
    done = run_command(_day(tmp_path), machine.ROOT, os.environ, timeout=700)
    assert done.returncode == 0, done.stdout + (tmp_path / "report.md").read_text()


_PRESENT = {"_pytest", "hypothesis", "ml_dtypes", "numpy", "pytest", "torch", "typing_extensions"}
_OWN = {"benchmarks", "pynccl", "tests", "tools"}


def test_files_import_only_what_a_gpu_machine_has() -> None:
    """At module level, where a missing package would end the collection, except optional ones."""
    known = _PRESENT | _OWN | set(sys.stdlib_module_names)
    wrong = []
    for path in (machine.ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        for node in ast.parse(text).body:
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for root in {str(name).partition(".")[0] for name in names} - known:
                if f'importorskip("{root}' not in text:
                    wrong.append(f"{path.relative_to(machine.ROOT)}: {root}")
    assert not wrong
