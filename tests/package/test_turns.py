"""Proves that tests in two workers run in parallel, and those marked serial alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_command

pytest.importorskip("xdist", reason="needs pytest-xdist")

_CONFTEST = "from tests.support.turns import pytest_configure_node, pytest_runtest_protocol\n"
_TESTS = """
import json
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", range(4))
def test_beside(number):
    spend("beside")


@pytest.mark.serial
@pytest.mark.parametrize("number", range(2))
def test_serial(number):
    spend("serial")


def test_last():
    spend("beside")


def spend(what):
    began = time.monotonic()
    time.sleep(0.2)
    with open(Path(__file__).parent / "spans", "a") as spans:
        spans.write(json.dumps([what, began, time.monotonic(), __file__]) + "\\n")
"""

Span = tuple[str, float, float, str]


def _overlap(one: Span, other: Span) -> bool:
    return one[1] < other[2] and other[1] < one[2]


def test_serial_tests_run_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = serial\n")
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    done = run_command([*command, str(tmp_path)], tmp_path, env, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 passed" in done.stdout
    spans = [tuple(json.loads(line)) for line in (tmp_path / "spans").read_text().splitlines()]
    pairs = [(one, other) for one in spans for other in spans if one is not other]
    together = [{one[0], other[0]} for one, other in pairs if _overlap(one, other)]
    assert {"beside"} in together
    assert not any("serial" in both for both in together)
    serial = [span[3] for span in sorted(spans, key=lambda span: span[1]) if span[0] == "serial"]
    assert serial == [serial[0]] * 2 + [serial[-1]] * 2, "another worker ran a test between two"
