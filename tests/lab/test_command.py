"""Proves that the lab's commands run end to end with launched ranks and under torchrun, that their
files hold the rows, and that wrong arguments are refused by name before a rank starts.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import pytest

from pynccl.lab import command, output
from tests.support.commands import run_command
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[2]
_PNG = b"\x89PNG"


def _run(*words: object, module: str = "pynccl.lab", timeout: float = 240) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *module.split(), *map(str, words)]
    done = run_command(command, _ROOT, env, timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_overlap(tmp_path: Path) -> None:
    files = {name: tmp_path / f"rows.{name}" for name in ("csv", "json", "png")}
    printed = _run(
        "overlap",
        "--sizes",
        "64K,256K",
        "--load",
        "sleep",
        "--load-seconds",
        "0.01",
        "--buffer",
        "plain,window",
        "--chunks",
        "1,2",
        "--repeats",
        "3",
        "--csv",
        files["csv"],
        "--json",
        files["json"],
        "--plot",
        files["png"],
        "--lanes",
        tmp_path / "lanes.png",
    )
    lines = printed.splitlines()
    assert lines[0].split()[:3] == ["buffer", "chunks", "size"]
    assert len(lines) == 9
    rows = output.read_json(files["json"])
    assert [row.setting["nbytes"] for row in rows] == [2**16, 2**18] * 4
    assert {row.nranks for row in rows} == {2}
    for row in rows:
        assert 0.0099 < row.compute.median < 0.03
        assert 0 < row.communication.median < 0.03
    with files["csv"].open() as file:
        table = list(csv.DictReader(file))
    assert [line["buffer"] for line in table] == ["plain"] * 4 + ["window"] * 4
    assert [float(line["both_s"]) for line in table] == [row.both.median for row in rows]
    assert files["png"].read_bytes().startswith(_PNG)
    assert (tmp_path / "lanes.png").read_bytes().startswith(_PNG)


@pytest.mark.skipif(not FULL, reason="torchrun imports torch four times: `make test-all`")
def test_overlap_under_torchrun_on_part_of_the_ranks() -> None:
    printed = _run(
        "--standalone",
        "--nproc-per-node",
        3,
        "-m",
        "pynccl.lab",
        "overlap",
        "--ranks",
        "2,3",
        "--sizes",
        "64K",
        "--load",
        "sleep",
        "--load-seconds",
        "0.01",
        "--repeats",
        "3",
        module="torch.distributed.run",
    )
    lines = printed.splitlines()
    assert lines[0].split()[:2] == ["nranks", "T_compute"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "3"]


def _overlap(collectives: str, loads: str, form: str) -> list[str]:
    printed = _run(
        "overlap",
        "--sizes",
        "64K",
        "--collective",
        collectives,
        "--load",
        loads,
        "--form",
        form,
        "--repeats",
        3,
        "--priority",
        "-1",
        "--ctas",
        "1:4",
    )
    return printed.splitlines()


def test_every_collective() -> None:
    collectives = "all_reduce,broadcast,reduce,all_gather,reduce_scatter,all_to_all,gather,scatter"
    lines = _overlap(f"{collectives},send_recv", "gemm:64", "graph")
    assert len(lines) == 1 + 9


def test_every_load() -> None:
    loads = "memory:1M,spin:0.001,tests.lab.test_command:make_load"
    assert len(_overlap("all_reduce", loads, "eager")) == 1 + 3


def make_load(comm: object) -> object:
    """A user's load."""
    from pynccl import lab

    assert comm is not None
    return lab.Sleep(0.001)


def test_sweep(tmp_path: Path) -> None:
    printed = _run(
        "sweep",
        "--sizes",
        "4K,1M",
        "--ranks",
        "2,3",
        "--repeats",
        3,
        "--csv",
        tmp_path / "s.csv",
        "--json",
        tmp_path / "s.json",
        "--plot",
        tmp_path / "s.png",
    )
    lines = printed.splitlines()
    assert lines[0].split()[:6] == ["ranks", "size", "default", "staged", "direct", "window"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["2", "4", "KiB"],
        ["2", "1", "MiB"],
        ["3", "4", "KiB"],
        ["3", "1", "MiB"],
    ]
    data = json.loads((tmp_path / "s.json").read_text())
    assert len(data) == 16
    assert all(entry["timing"]["samples"] and not entry["error"] for entry in data)
    chosen = [entry["chosen"] for entry in data if entry["variant"]["algorithm"] == "default"]
    assert set(chosen) <= {"staged", "direct"}
    assert (tmp_path / "s.png").read_bytes().startswith(_PNG)
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 17


def test_sweep_says_what_did_not_run() -> None:
    env = {"HOSTNCCL_CMA": "FALSE"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTNCCL_CMA", env["HOSTNCCL_CMA"])
        printed = _run("sweep", "--sizes", "4K", "--algorithms", "staged,direct", "--repeats", 3)
    line = printed.splitlines()[1].split()
    assert line[5] == "-"  # rank, 4, KiB, default, staged, direct
    assert "direct did not run" in printed
    assert '"direct" is not available' in printed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["overlap", "--sizes", "4X"], "'4X' is no size"),
        (["overlap", "--collective", "all"], "'all' is not one of all_reduce"),
        (["overlap", "--ctas", "many"], "ctas: 'many' is not default, a number or LEAST:MOST"),
        (["overlap", "--policy", "none"], "'none' is not one of default, efficiency, zero"),
        (["overlap", "--ranks", "0"], "--ranks: [0] are no numbers of ranks"),
        (["sweep", "--algorithms", "ring"], "'ring' is not a path of hostnccl"),
        (["sweep", "--protocols", "ll"], "hostnccl has neither"),
        (["sweep", "--collective", "send_recv", "--algorithms", "direct"], "send_recv has none"),
    ],
)
def test_wrong_arguments(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([*words, "--provider", "host"])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
