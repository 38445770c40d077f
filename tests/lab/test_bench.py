"""Proves that `pynccl bench` checks results, times both libraries, and lists slower rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pynccl
from pynccl import cli
from pynccl.tools import bench
from tests.support.launcher import Launcher
from tests.support.rank import Rank

pytestmark = pytest.mark.long


def _rows(rank: Rank, nbytes: int) -> list[bench.Row]:
    return bench.measure(rank, [(name, nbytes) for name in bench.OPERATIONS], 2)


def test_every_operation(launch: Launcher) -> None:
    """All ranks return the same rows; sizes are rounded to whole elements of each rank."""
    rows = launch(3, _rows, 1000)
    assert rows[0] == rows[1] == rows[2]
    assert [row.operation for row in rows[0]] == list(bench.OPERATIONS)
    for row in rows[0]:
        assert not row.wrong
        assert len(row.pynccl) == len(row.torch) == 2
        assert min(*row.pynccl, *row.torch) > 0


def _wrong_call(library: object, *_: object) -> object:
    """Calls that do nothing, or raise."""

    def call() -> None:
        if library is pynccl:
            raise NotImplementedError("not here")

    return call


def _wrong_rows(rank: Rank) -> list[bench.Row]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "call_of", _wrong_call)
        return bench.measure(rank, [("all_reduce", 64)], 1)


def test_a_wrong_result_and_an_error(launch: Launcher) -> None:
    """They are not timed."""
    rows = launch(2, _wrong_rows)[0]
    line, wrong = bench.write(rows, "gloo").splitlines()[1:]
    assert line.split() == ["all_reduce", "64", "B", *"-----"]
    assert wrong == "all_reduce 64 B: pynccl: not here, torch: a wrong result on a rank"


def test_summary() -> None:
    rows = [
        bench.Row("all_reduce", 1024, [1e-6, 2e-6, 3e-6], [8.4e-6, 8.5e-6, 8.6e-6]),
        bench.Row("broadcast", 2**20, [2.5e-3], [1e-3]),
    ]
    header, *lines, summary = bench.write(rows, "gloo").splitlines()
    assert header.split() == [
        "operation",
        "size",
        "pynccl",
        "us",
        "spread",
        "gloo",
        "us",
        "spread",
        "ratio",
    ]
    assert lines[0].split() == ["all_reduce", "1", "KiB", "2.00", "50%", "8.50", "1%", "4.25"]
    assert lines[1].split() == ["broadcast", "1", "MiB", "2500", "0%", "1000", "0%", "0.40"]
    assert summary == "pynccl is faster in 1 of 2 rows, slower in broadcast 1 MiB (0.40)"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.json"
    words = ["--operations", "all_reduce,send_recv", "--sizes", "8,4K", "--repeats", "3"]
    assert cli.main(["bench", *words, "--provider", "host", "--json", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 4 + 1
    assert "of 4 rows" in lines[-1]
    assert [len(row["torch"]) for row in json.loads(data.read_text())] == [3] * 4
    words = ["--operations", "all_reduce", "--sizes", "8", "--repeats", "1", "--provider", "host"]
    assert cli.main(["bench", *words, "--json", str(tmp_path)]) == 2
    assert "pynccl bench: [Errno 21]" in capsys.readouterr().err
