"""Proves what `pynccl compare` says of two runs of a script. docs/howto runs the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pynccl import cli
from pynccl.tools.compare import comparison, worker
from tests.support.tier import FULL

_BACKENDS = ("gloo", "pynccl")


def _write(
    folder: Path, printed: dict[str, list[str]], **operations: list[list[list[float]]]
) -> None:
    """The files of two ranks. operations has the seconds by backend, rank and call."""
    for i, backend in enumerate(_BACKENDS):
        for rank in range(2):
            own = {name: found[i][rank] for name, found in operations.items() if found[i][rank]}
            result = {"seconds": 2.0 - i, "operations": own}
            (folder / f"{backend}.{rank}.json").write_text(json.dumps(result))
            (folder / f"{backend}.{rank}.out").write_text(printed[backend][rank])


@pytest.mark.parametrize(
    ("first", "second", "output"),
    [
        ("loss 0.25\n", "loss 0.25\n", "equal"),
        ("loss 0.25 1e-3\n", "loss 0.250001 1.00001e-3\n", "equal but for rounding"),
        (
            "a\nloss 0.25\n",
            "a\nloss 0.26\n",
            "line 2 of rank 1: gloo 'loss 0.25', pynccl 'loss 0.26'",
        ),
        ("a\n", "a\nb\n", "line 2 of rank 1: gloo nothing, pynccl 'b'"),
        ("3 steps\n", "3 stops\n", "line 1 of rank 1: gloo '3 steps', pynccl '3 stops'"),
    ],
)
def test_output(tmp_path: Path, first: str, second: str, output: str) -> None:
    _write(tmp_path, {"gloo": ["x", first], "pynccl": ["x", second]})
    found = comparison.read(tmp_path, _BACKENDS, 2)
    assert found.output.removeprefix("differs in ") == output
    assert found.equal is output.startswith("equal")
    assert found.seconds == (2.0, 1.0)
    assert output in found.text()


def test_times(tmp_path: Path) -> None:
    """A call counts as it was on the rank that waited least, whichever rank that is."""
    _write(
        tmp_path,
        {"gloo": ["", ""], "pynccl": ["", ""]},
        all_reduce=[[[4e-6, 90e-6, 5e-6], [80e-6, 6e-6, 70e-6]], [[1e-6] * 3, [2e-6] * 3]],
        send=[[[8e-6], []], [[2e-6], []]],
        only_here=[[[], []], [[1e-6], [1e-6]]],
    )
    found = comparison.read(tmp_path, _BACKENDS, 2)
    rows = {row.operation: row for row in found.rows}
    assert rows["all_reduce"] == comparison.Row("all_reduce", 3, (5e-6, 1e-6))
    assert rows["send"] == comparison.Row("send", 1, (8e-6, 2e-6))
    lines = {line.split()[0]: line.split() for line in found.text().splitlines()}
    assert lines["all_reduce"] == ["all_reduce", "3", "5.0", "1.0", "5.00"]
    assert lines["only_here"] == ["only_here", "1", "-", "1.0", "-"]


def test_groups_get_the_backend() -> None:
    seen = []

    def new_group(ranks: object = None, timeout: object = None, backend: object = None) -> None:
        seen.append((ranks, backend))

    over = worker._over(new_group, "pynccl")
    over([0], None, "gloo")
    over([1], backend="gloo")
    over()
    assert seen == [([0], "pynccl"), ([1], "pynccl"), (None, "pynccl")]


def test_a_script_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "no_such_file.py"]) == 2
    assert "no file no_such_file.py" in capsys.readouterr().err


@pytest.mark.skipif(not FULL, reason="takes half a minute: in `make test-all`")
def test_a_script_that_hangs_or_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is ended with its ranks."""
    script = tmp_path / "hangs.py"
    script.write_text(
        "import os, sys, time\n"
        "open(f'{sys.argv[1]}.pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    words = ["compare", "--ranks", "1", "--timeout", "20", str(script), str(script)]
    assert cli.main(words) == 1
    assert "the script was not done after 20 s over gloo" in capfd.readouterr().err
    pid = int((tmp_path / "hangs.py.pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    script.write_text("raise SystemExit(3)")
    assert cli.main(["compare", "--ranks", "1", str(script)]) == 1
    assert "the script failed (status 1) over gloo" in capfd.readouterr().err
