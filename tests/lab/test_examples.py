"""Proves that the examples of the lab run as their heads say, in `make test-all` one of them
also with three ranks, check their results, and print a row for each setting.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from pynccl.lab import output
from tests.support.commands import run_command
from tests.support.tier import FULL

_ROOT = Path(__file__).parents[2]
_EXAMPLES = sorted((_ROOT / "examples" / "lab").glob("*.py"))


def _run(example: Path, *options: object) -> str:
    head = ast.get_docstring(ast.parse(example.read_text())) or ""
    found = re.search(r"^Run: python (\S+)$", head, re.MULTILINE)
    assert found, f"{example.name} does not say how it is run"
    words = [sys.executable, *shlex.split(found[1]), *map(str, options)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYNCCL_PROVIDER": "host"}
    done = run_command(words, _ROOT, env, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("example", "ranks"),
    [*((example, 2) for example in _EXAMPLES), *([(_EXAMPLES[-2], 3)] if FULL else [])],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_it_runs_as_its_head_says(example: Path, ranks: int, tmp_path: Path) -> None:
    data, plot = tmp_path / "rows.json", tmp_path / "lanes.png"
    options = () if ranks == 2 else ("--ranks", ranks)
    lines = _run(example, *options, "--json", data, "--plot", plot).splitlines()
    head = ast.get_docstring(ast.parse(example.read_text())) or ""
    columns = [line.split() for line in head.splitlines() if "T_compute" in line]
    assert columns == [lines[0].split()]
    rows = output.read_json(data)
    assert len(lines) == len(rows) + 1 == 5
    assert {row.nranks for row in rows} == {ranks}
    assert len({tuple(row.setting.items()) for row in rows}) == 4
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_there_are_examples() -> None:
    assert len(_EXAMPLES) == 4
