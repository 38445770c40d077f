"""Proves that each script of examples/torch_course runs from the command in its head and prints
what it says.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import run_ahead, run_command
from tests.support.tier import FULL

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for path in (ROOT / "examples" / "torch_course").glob("*.py") if path.stem != "course"
)

# Parsed here: CPython 3.11 counts the depth of the nodes of all threads that parse in one place.
_HEADS = {path: ast.get_docstring(ast.parse(path.read_text())) for path in SCRIPTS}

Run = Future[subprocess.CompletedProcess[str]]


def _head(script: Path) -> tuple[list[str], list[str]]:
    """The command, and the lines that it prints."""
    doc = _HEADS[script]
    assert doc is not None
    text, _, prints = doc.partition("Prints:\n")
    command = next(line for line in text.splitlines() if line.startswith("    "))
    return shlex.split(command), [line.strip() for line in prints.splitlines() if line.strip()]


def _run(script: Path) -> subprocess.CompletedProcess[str]:
    command, _ = _head(script)
    launchers = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}
    return run_command(
        [sys.executable, *launchers[command[0]], *command[1:]],
        ROOT,
        {**warm.own_environment(), "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        timeout=120,
        popen=warm.Popen,
    )


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[Path, Run]]:
    """The run of each script, under way or done."""
    with run_ahead(request, "script", _run) as started:
        yield started


# Ranks that import torch: test_mirror_launch.py starts others so.
_LONG = () if FULL else ("spawn", "torchrun")
_RUN = [script for script in SCRIPTS if script.stem not in _LONG]


@pytest.mark.parametrize("script", _RUN, ids=lambda path: path.stem)
def test_course(script: Path, runs: dict[Path, Run]) -> None:
    _, expected = _head(script)
    done = runs[script].result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


def test_course_is_complete() -> None:
    """Every collective and concept has its script."""
    names = {path.stem for path in SCRIPTS}
    collectives = {"broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather",
                   "reduce_scatter", "all_to_all", "barrier"}  # fmt: skip
    assert collectives <= names
    assert len(names) == 21
