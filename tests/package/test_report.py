"""Proves that the runner of the GPU tests reports every outcome, and that the other tests still run
when one hangs or kills pytest.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.tier import FULL

_ROOT = Path(__file__).parents[2]

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


# The arguments of each run. The second one's time is up while a test hangs; the third has a few of
# the real tests, as on a GPU.
_RUNS = {
    "outcomes": ("--each", "3", "--total", "60", "test_broken.py", "test_outcomes.py"),
    "time is up": ("--each", "60", "--total", "20", "test_outcomes.py"),
    "worlds": (str(_ROOT / "tests" / "nccl" / "test_plan.py"), "-k", "test_values and not 1"),
}

Run = tuple[Path, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    """The folder and the end of each run; they run at the same time because they wait a lot."""

    def run(name: str) -> Run:
        folder = tmp_path_factory.mktemp("report")
        (folder / "test_outcomes.py").write_text(_TESTS)
        (folder / "test_broken.py").write_text("import a_module_that_is_not_there")
        words = [str(folder / word) if word.endswith(".py") else word for word in _RUNS[name]]
        command = [sys.executable, "-m", "tests.report.run", "--device", "cpu"]
        command += ["--out", str(folder)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return folder, run_command([*command, *words], _ROOT, env, timeout=150)

    with ThreadPoolExecutor(len(_RUNS)) as pool:
        yield {name: pool.submit(run, name) for name in _RUNS if FULL or name != "time is up"}


def test_every_outcome_is_reported(runs: dict[str, Future[Run]]) -> None:
    folder, done = runs["outcomes"].result()
    assert done.returncode == 1, done.stderr
    (written,) = folder.glob("*-cpu-tests.json")
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
        assert str(folder) not in whole
        assert str(_ROOT) not in whole
        assert socket.gethostname() not in whole


@pytest.mark.skipif(not FULL, reason="it waits for the end of a time limit: `make test-all`")
def test_tests_without_time_are_reported(runs: dict[str, Future[Run]]) -> None:
    folder, done = runs["time is up"].result()
    assert done.returncode == 1, done.stderr
    (written,) = folder.glob("*-cpu-tests.json")
    outcomes = [test["outcome"] for test in json.loads(written.read_text())["tests"]]
    assert outcomes == ["passed", "hung", *["not run"] * 4]


def test_worlds_are_reported(runs: dict[str, Future[Run]]) -> None:
    folder, done = runs["worlds"].result()
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = folder.glob("*-cpu-tests.md")
    text = written.read_text()
    for world in ("| 2 | processes | 1 | 1 |", "| 4 | threads of a process | 1 | 1 |"):
        assert world in text
    assert "| hostnccl | 2." in text
