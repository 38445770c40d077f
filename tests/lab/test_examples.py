"""Proves that the examples of the lab check their results and measure a row for each setting."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
from pathlib import Path

import pytest

from pynccl import nccl
from pynccl.tools import lab

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[2]
_EXAMPLES = sorted((_ROOT / "examples" / "lab").glob("*.py"))
_FEW = {"repeats": 3, "warmup": 1, "limit": 1.0, "evidence": False}  # rounds are checked
_SMALL = {"SIDE": 128, "ROWS": 256, "COLUMNS": 256}  # of the arrays of an example
_PNG = b"\x89PNG"


def _check(example: Path, data: Path, printed: str, ranks: int) -> None:
    rows, lines = json.loads(data.read_text())["rows"], printed.splitlines()
    head = ast.get_docstring(ast.parse(example.read_text())) or ""
    assert f"\nRun: python {example.relative_to(_ROOT)}\n" in head
    columns = [line.split() for line in head.splitlines() if "T_compute" in line]
    assert columns == [lines[0].split()]
    assert len(lines) == len(rows) + 1 == 5
    assert {row["nranks"] for row in rows} == {ranks}
    assert len({tuple(row["setting"].items()) for row in rows}) == 4


def _measure(example: str, comm: nccl.Communicator) -> list[lab.Row]:
    spec = importlib.util.spec_from_file_location("example", example)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in _SMALL.keys() & vars(module).keys():
        setattr(module, name, _SMALL[name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "overlap", functools.partial(lab.overlap, **_FEW))
        rows: list[lab.Row] = module.measure(comm)
    return rows


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda example: example.stem)
def test_its_results_are_correct(
    example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run like its last line, with few rounds and small arrays."""
    ranks = 3 if example.stem == "pipeline" else 2  # with a stage in the middle
    assert example.read_text().endswith('if __name__ == "__main__":\n    lab.script(measure)\n')
    data, plot = tmp_path / "rows.json", tmp_path / "lanes.png"
    words = ["--ranks", str(ranks), "--provider", "host", "--json", str(data), "--plot", str(plot)]
    lab.script(functools.partial(_measure, str(example)), words)
    _check(example, data, capsys.readouterr().out, ranks)
    assert plot.read_bytes().startswith(_PNG)
