"""Proves the reports of `pynccl compare`. The how-to guides run the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from pynccl import cli
from pynccl.tools.compare import comparison, worker
from tests.support.tier import FULL

_BACKENDS = ("gloo", "pynccl")


def _write(
    folder: Path, printed: dict[str, list[str]], **operations: list[list[list[float]]]
) -> None:
    """Write the files of two ranks. operations: the seconds by backend, rank and call."""
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
        ("a" * 200, "b", f"line 1 of rank 1: gloo '{'a' * 120}...', pynccl 'b'"),
    ],
)
def test_output(tmp_path: Path, first: str, second: str, output: str) -> None:
    _write(tmp_path, {"gloo": ["x", first], "pynccl": ["x", second]})
    found = comparison.read(tmp_path, _BACKENDS, 2)
    assert found.output.removeprefix("differs in ") == output
    assert found.equal is output.startswith("equal")
    assert found.seconds == (2.0, 1.0)
    assert output in found.text()


@pytest.mark.parametrize(
    ("second", "third", "output"),
    [
        ("pid 2\nloss 1\n", "pid 3\nloss 1\n", "equal but for 1 of 3 lines, which also differ"),
        ("pid 2\nloss 2\n", "pid 3\nloss 1\n", "differs in line 2 of rank 1"),
        ("pid 2\nloss 2\n", "pid 1\nloss 1\n", "differs in line 1 of rank 1"),
    ],
)
def test_a_line_that_also_differs_between_two_runs_over_one_backend_is_not_compared(
    tmp_path: Path, second: str, third: str, output: str
) -> None:
    again = tmp_path / "again"
    again.mkdir()
    _write(tmp_path, {"gloo": ["x", "pid 1\nloss 1\n"], "pynccl": ["x", second]})
    _write(again, {"gloo": ["x", third], "pynccl": ["", ""]})
    found = comparison.read(tmp_path, _BACKENDS, 2, again)
    assert found.output.startswith(output)
    assert found.equal is output.startswith("equal")


def test_a_script_whose_lines_all_vary_is_not_comparable(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    _write(tmp_path, {"gloo": ["", "pid 1\n"], "pynccl": ["", "pid 2\n"]})
    _write(again, {"gloo": ["", "pid 3\n"], "pynccl": ["", ""]})
    found = comparison.read(tmp_path, _BACKENDS, 2, again)
    assert found.output.startswith("not comparable: all 1 lines")
    assert not found.equal


def test_a_script_without_output_or_operations(tmp_path: Path) -> None:
    _write(tmp_path, {"gloo": ["", ""], "pynccl": ["", ""]})
    text = comparison.read(tmp_path, _BACKENDS, 2).text()
    assert "no operation of a process group was found" in text
    assert "output: equal, but the script prints nothing" in text


def test_times(tmp_path: Path) -> None:
    """The time of a call is that of the rank that waited least."""
    _write(
        tmp_path,
        {"gloo": ["", ""], "pynccl": ["", ""]},
        all_reduce=[[[4e-6, 90e-6, 5e-6], [80e-6, 6e-6, 70e-6]], [[1e-6] * 3, [2e-6] * 3]],
        send=[[[8e-6], []], [[2e-6], []]],
        only_here=[[[], []], [[1e-6], [1e-6]]],
        instant=[[[1e-6], [1e-6]], [[0.0], [0.0]]],
    )
    found = comparison.read(tmp_path, _BACKENDS, 2)
    rows = {row.operation: row for row in found.rows}
    assert rows["all_reduce"] == comparison.Row("all_reduce", 3, (5e-6, 1e-6))
    assert rows["send"] == comparison.Row("send", 1, (8e-6, 2e-6))
    lines = {line.split()[0]: line.split() for line in found.text().splitlines()}
    assert lines["all_reduce"] == ["all_reduce", "3", "5.0", "1.0", "5.00"]
    assert lines["only_here"] == ["only_here", "1", "-", "1.0", "-"]
    assert lines["instant"] == ["instant", "1", "1.0", "0.0", "-"]
    text = json.dumps(found.json(), allow_nan=False)
    seconds = {row["operation"]: row["seconds"] for row in json.loads(text)["rows"]}
    assert seconds["only_here"] == [None, 1e-6]


def test_groups_get_the_backend() -> None:
    seen = []

    def new_group(ranks: object = None, timeout: object = None, backend: object = None) -> None:
        seen.append((ranks, backend))

    over = worker._over(new_group, "pynccl")
    over([0], None, "gloo")
    over([1], backend="gloo")
    over()
    assert seen == [([0], "pynccl"), ([1], "pynccl"), (None, "pynccl")]


def test_groups_of_modules_that_imported_the_functions_get_the_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("init_process_group", "new_group"):
        for module in (dist, distributed_c10d, device_mesh):
            monkeypatch.setattr(module, name, getattr(distributed_c10d, name))  # to restore it
    original = distributed_c10d.new_group
    worker._patch("pynccl")
    assert device_mesh.new_group is dist.new_group is distributed_c10d.new_group
    assert device_mesh.new_group is not original


def test_a_missing_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "no_such_file.py"]) == 2
    assert "script: no such file: no_such_file.py" in capsys.readouterr().err


@pytest.mark.skipif(not FULL, reason="takes half a minute: in `make test-all`")
def test_a_script_that_hangs_or_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The script is terminated with its ranks."""
    script = tmp_path / "hangs.py"
    script.write_text(
        "import os, sys, time\n"
        "open(f'{sys.argv[1]}.pid', 'w').write(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    words = ["compare", "--ranks", "1", "--timeout", "20", str(script), str(script)]
    assert cli.main(words) == 1
    printed = capfd.readouterr().err
    assert "the script did not finish within 20 s over gloo" in printed
    assert 'hangs.py", line 3 in <module>' in printed  # the stack
    pid = int((tmp_path / "hangs.py.pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    script.write_text("raise SystemExit(3)")
    assert cli.main(["compare", "--ranks", "1", str(script)]) == 1
    assert "the script failed (status 1) over gloo" in capfd.readouterr().err
    script.write_text("import os; os._exit(0)")
    assert cli.main(["compare", "--ranks", "1", str(script)]) == 1
    printed = capfd.readouterr().err
    assert "rank 0 ended without a result over gloo" in printed
    assert "USDT" not in printed
