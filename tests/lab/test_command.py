"""Proves that the lab's commands run end to end with launched ranks and under torchrun, that their
files contain the rows, and that wrong arguments are rejected by name before a rank starts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

import pytest

from pynccl import cli
from pynccl.tools.lab import world
from tests.support.commands import run_command
from tests.support.tier import FULL

pytestmark = pytest.mark.long

_ROOT = Path(__file__).parents[2]
_PNG = b"\x89PNG"


Capture = pytest.CaptureFixture[str]


def _run(capsys: Capture, *words: object) -> str:
    cli.main(["lab", *map(str, words), "--provider", "host"])
    return capsys.readouterr().out


def test_overlap(tmp_path: Path, capsys: Capture) -> None:
    files = {name: tmp_path / f"rows.{name}" for name in ("json", "png")}
    words = ["overlap", "--sizes", "64K,256K", "--load", "sleep", "--load-seconds", "0.01"]
    words += ["--buffer", "plain,window", "--chunks", "1,2", "--repeats", "3"]
    printed = _run(capsys, *words, "--json", files["json"], "--plot", files["png"])
    lines = printed.splitlines()
    assert lines[0].split()[:3] == ["buffer", "chunks", "size"]
    assert len(lines) == 9
    rows = json.loads(files["json"].read_text())["rows"]
    assert [row["setting"]["nbytes"] for row in rows] == [2**16, 2**18] * 4
    assert [row["setting"]["buffer"] for row in rows] == ["plain"] * 4 + ["window"] * 4
    assert {row["nranks"] for row in rows} == {2}
    for row in rows:
        assert row["compute"] > 0.0099
        assert row["communication"] > 0
        assert len(row["samples"]["both"]) == 3
    assert files["png"].read_bytes().startswith(_PNG)


@pytest.mark.skipif(not FULL, reason="torchrun imports torch four times: `make test-all`")
def test_overlap_under_torchrun_on_part_of_the_ranks() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words += ["-m", "pynccl", "lab", "overlap", "--ranks", "2,3", "--sizes", "64K"]
    words += ["--load", "sleep"]
    words += ["--load-seconds", "0.01", "--repeats", "3"]
    done = run_command(words, _ROOT, env, 240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["nranks", "T_compute"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "3"]


def test_a_load_with_seconds(tmp_path: Path, capsys: Capture) -> None:
    data = tmp_path / "rows.json"
    words = ["overlap", "--sizes", "64K", "--load", "sleep:0.03,spin:0.03,sleep", "--repeats", "3"]
    _run(capsys, *words, "--until-certain", "--limit", "1", "--json", data)
    sleep, spin, fitted = (row["compute"] for row in json.loads(data.read_text())["rows"])
    assert sleep > 0.0299
    assert spin > 0.0299
    assert fitted < 0.03


@pytest.mark.parametrize(
    ("words", "repeats", "until_certain"),
    [
        ([], 20, 5.0),
        (["--repeats", "7"], 7, False),
        (["--repeats", "7", "--until-certain"], 7, True),
        (["--until-certain"], 20, True),
    ],
)
def test_rounds(
    words: list[str],
    repeats: int,
    until_certain: bool | float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without --repeats, further rounds decide the verdict."""
    seen = []

    def run(nranks: int, function: object, args: tuple, provider: str) -> None:
        assert [setting.nbytes for setting in args[0]] == [2**18, 2**20, 2**22]
        seen.append(args[1])

    monkeypatch.setattr(world, "run", run)
    assert cli.main(["lab", "overlap", *words, "--provider", "host"]) == 0
    assert [(one["repeats"], one["until_certain"]) for one in seen] == [(repeats, until_certain)]


def test_a_plot_without_matplotlib_is_rejected_before_the_measurement(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delattr(world, "run")
    assert cli.main(["lab", "overlap", "--plot", "x.png"]) == 2
    assert "a plot needs matplotlib (pip install 'rawnccl[plot]')" in capsys.readouterr().err


def _overlap(capsys: Capture, collectives: str, loads: str, form: str) -> list[str]:
    words = ["overlap", "--sizes", "64K", "--collective", collectives, "--load", loads]
    words += ["--form", form, "--repeats", "3", "--priority=-1", "--ctas", "1:4"]
    return _run(capsys, *words).splitlines()


def test_every_collective(capsys: Capture) -> None:
    collectives = "all_reduce,broadcast,reduce,all_gather,reduce_scatter,all_to_all,gather,scatter"
    lines = _overlap(capsys, f"{collectives},send_recv", "gemm:64", "graph")
    assert len(lines) == 1 + 9


def test_every_load(capsys: Capture) -> None:
    assert len(_overlap(capsys, "all_reduce", "memory:1M,spin:0.001", "eager")) == 1 + 2


def test_sweep(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "s.json"
    words = ["sweep", "--sizes", "4K,1M", "--ranks", "2,3", "--repeats", "3"]
    lines = _run(capsys, *words, "--json", file).splitlines()
    assert lines[0].split()[:6] == ["ranks", "size", "default", "staged", "direct", "window"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [nranks, *size] for nranks in "23" for size in (["4", "KiB"], ["1", "MiB"])
    ]
    data = json.loads(file.read_text())
    assert len(data) == 16
    assert all(entry["timing"]["samples"] and not entry["error"] for entry in data)
    chosen = [entry["chosen"] for entry in data if entry["variant"]["algorithm"] == "default"]
    assert set(chosen) <= {"staged", "direct"}
    # The same choice, with the measured times beside it.
    words = ["explain", "--provider", "host", "--sizes", "4K,1M,1K", "--measured"]
    assert cli.main([*words, str(file)]) == 0
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("all_reduce, 2 ranks, hostnccl 2.")
    assert title.endswith(": microseconds")
    assert header.split() == ["size", "measured", "algorithm", "rounds", "fastest"]
    medians = {
        (entry["nbytes"], entry["variant"]["algorithm"]): statistics.median(
            entry["timing"]["samples"]
        )
        for entry in data
        if entry["nranks"] == 2
    }
    for nbytes, row, choice in zip((4096, 1 << 20), rows, chosen, strict=False):
        time = medians[nbytes, choice]
        assert row.split()[2:4] == [f"{time * 1e6:.1f}", choice]
        least = min(way for (size, _), way in medians.items() if size == nbytes)
        assert row.endswith(f" {least * 1e6:.1f}")
    assert rows[2].split() == ["1", "KiB", "staged", "1"]


def test_sweep_lists_variants_that_did_not_run(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTNCCL_CMA", "FALSE")
    words = ["sweep", "--sizes", "4K", "--algorithms", "staged,direct", "--repeats", 3]
    printed = _run(capsys, *words)
    line = printed.splitlines()[1].split()
    assert line[5] == "-"  # rank, 4, KiB, default, staged, direct
    assert "direct did not run" in printed
    assert '"direct" is not available' in printed


@pytest.mark.parametrize(
    ("command", "words", "text"),
    [
        ("lab overlap", ["--sizes", "4X"], "'4X' is not a size"),
        ("lab overlap", ["--collective", "all"], "'all' is not one of all_reduce"),
        ("lab overlap", ["--ctas", "many"], "ctas: 'many' is not default, a number or LEAST:MOST"),
        ("lab overlap", ["--policy", "none"], "'none' is not one of default, efficiency, zero"),
        ("lab overlap", ["--ranks", "0"], "argument --ranks: 0 is below 1"),
        ("lab sweep", ["--algorithms", "ring"], "'ring' is not a path of hostnccl"),
        ("lab sweep", ["--protocols", "ll"], "hostnccl has neither"),
        (
            "lab sweep",
            ["--collective", "send_recv", "--algorithms", "direct"],
            "send_recv has none",
        ),
        ("explain", ["--ranks", "0"], "argument --ranks: 0 is below 1"),
        ("explain", ["--ranks", "1"], "--ranks: 1 is below 2"),
        ("explain", ["--sizes", "1K", "--json", "missing/x"], "pynccl explain: [Errno 2]"),
        ("explain", ["--tuning", "x"], "--tuning: hostnccl reads no tuning file"),
        (
            "explain",
            ["--measured", "/dev/null"],
            "not a file of pynccl lab sweep --json: Expecting",
        ),
        ("explain", ["--measured", "missing"], "No such file"),
        ("explain", ["--sizes", "x"], "'x' is not a size"),
        ("bench", ["--operations", "gossip"], "'gossip' is not one of all_reduce"),
        ("bench", ["--sizes", "4X"], "'4X' is not a size"),
        ("bench", ["--ranks", "0"], "argument --ranks: 0 is below 1"),
        ("lab overlap", ["--load-seconds", "-1"], "argument --load-seconds: -1 is not above 0"),
        ("lab overlap", ["--limit", "nan"], "argument --limit: nan is not above 0"),
        ("lab overlap", ["--repeats", "0"], "argument --repeats: 0 is below 1"),
        ("lab sweep", ["--repeats", "-1"], "argument --repeats: -1 is below 1"),
        ("lab overlap", ["--limit", "inf"], "--limit: inf is not above 0 and at most 1e+06"),
        ("compare", ["--timeout", "nan", "x.py"], "argument --timeout: nan is not above 0"),
        ("compare", ["--ranks", "0", "x.py"], "argument --ranks: 0 is below 1"),
    ],
)
def test_wrong_arguments(command: str, words: list[str], text: str, capsys: Capture) -> None:
    status: object
    try:
        status = cli.main([*command.split(), *words, "--provider", "host"])
    except SystemExit as ended:  # rejected by argparse
        status = ended.code
    assert status == 2
    assert text in capsys.readouterr().err


def test_failures(tmp_path: Path, capsys: Capture) -> None:
    """A rank that fails, and a file that cannot be written, after the table was printed."""
    words = ["lab", "overlap", "--provider", "host", "--sizes", "4K", "--repeats", "3"]
    assert cli.main([*words, "--chunks", "0", "--load", "sleep"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("pynccl lab: 2 of 2 ranks failed")
    assert "chunks: 0 is below 1" in printed
    missing = tmp_path / "missing" / "rows.json"
    assert cli.main([*words, "--load", "sleep:0.001", "--json", str(missing)]) == 2
    output = capsys.readouterr()
    assert "verdict" in output.out
    assert f"No such file or directory: '{missing}'" in output.err


def test_a_sweep_under_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert cli.main(["lab", "sweep", "--provider", "host"]) == 2
    assert "sweep launches its ranks itself; run it without torchrun" in capsys.readouterr().err
