"""Proves that the examples of the lab check their results and measure a row for each setting, and
that they run as their heads say: one of them, in `make test-all` all, and one with three ranks.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from pynccl import lab
from pynccl.lab import output
from tests.support.commands import run_command
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[2]
_EXAMPLES = sorted((_ROOT / "examples" / "lab").glob("*.py"))
_SHORT = _ROOT / "examples" / "lab" / "fsdp_prefetch.py"  # takes less time than the others
_FEW = {"repeats": 3, "warmup": 1}  # rounds; each has a check of its results


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
    [*((example, 2) for example in _EXAMPLES), (_EXAMPLES[-2], 3)] if FULL else [(_SHORT, 2)],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_it_runs_as_its_head_says(example: Path, ranks: int, tmp_path: Path) -> None:
    data, plot = tmp_path / "rows.json", tmp_path / "lanes.png"
    options = () if ranks == 2 else ("--ranks", ranks)
    printed = _run(example, *options, "--json", data, "--plot", plot)
    _check(example, output.read_json(data), printed, ranks)
    assert plot.read_bytes().startswith(b"\x89PNG")


def _check(example: Path, rows: list[lab.Row], printed: str, ranks: int) -> None:
    lines = printed.splitlines()
    head = ast.get_docstring(ast.parse(example.read_text())) or ""
    columns = [line.split() for line in head.splitlines() if "T_compute" in line]
    assert columns == [lines[0].split()]
    assert len(lines) == len(rows) + 1 == 5
    assert {row.nranks for row in rows} == {ranks}
    assert len({tuple(row.setting.items()) for row in rows}) == 4


def _measure(rank: Rank, example: str) -> list[lab.Row]:
    spec = importlib.util.spec_from_file_location("example", example)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "overlap", functools.partial(lab.overlap, **_FEW))
        rows: list[lab.Row] = module.measure(rank.comm)
    return rows


@pytest.mark.parametrize(
    "example", [e for e in _EXAMPLES if FULL or e != _SHORT], ids=lambda example: example.stem
)
def test_its_results_are_right(launch: Launcher, example: Path) -> None:
    env = {"OMP_NUM_THREADS": "1"}
    rows = launch(2, _measure, str(example), env=env, timeout=240)[0]
    _check(example, rows, output.write_table(rows), 2)


def test_there_are_examples() -> None:
    assert len(_EXAMPLES) == 4
