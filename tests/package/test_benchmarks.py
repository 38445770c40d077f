"""Proves that the benchmarks measure every row and column: hostnccl beside busy processes, and
training with DDP and FSDP2 over both backends, whose losses must not differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import run_python
from tests.support.tier import FULL


def _run(module: str, options: str, *more: str) -> str:
    done = run_python("-m", f"benchmarks.{module}", *options.split(), *more, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_host_beside_a_busy_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = "--quick --ranks 2 --operations all_reduce --sizes 4,64K --libraries hostnccl,gloo"
    output = _run("host", f"{options} --beside 1 --compute 100", "--out", str(tmp_path))
    assert "gloo: hostnccl is ahead in " in output
    report = json.loads((tmp_path / "host.json").read_text())
    assert (report["beside"], report["compute"]) == (1, 100)
    measured = [(row["bytes"], row["library"]) for row in report["rows"]]
    assert measured == [
        (size, library) for size in (4, 2**16) for library in ("hostnccl", "gloo", "copy")
    ]
    for row in report["rows"]:
        assert row["seconds"] > (0 if row["library"] == "copy" else 1e-4)
        assert row["spread"] >= 1


def test_ranks_and_busy_processes_are_sessions_of_their_own() -> None:
    from benchmarks.host_ranks import world
    from benchmarks.ranks import busy_processes

    with world("hostnccl", 2), busy_processes(1, own_sessions=True):
        children = {
            int(pid)
            for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()
        }
        assert sum(os.getsid(pid) == pid for pid in children) == 3


def test_busy_processes_end_with_a_killed_benchmark() -> None:
    code = (
        "import os, signal\n"
        "from benchmarks.ranks import busy_processes\n"
        "with busy_processes(1, own_sessions=True):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # The busy process inherits the pipe, whose end is read once it has ended.
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=60) == (b"", None)


@pytest.mark.skipif(not FULL, reason="it starts a dozen ranks: `make test-all`")
def test_training(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.train import COLUMNS
    from pynccl.c10d.build import build

    build()  # takes longer than the command may
    options = "--ranks 2 --steps 2 --width 8 --layers 1"
    head, _, *rows, _ = _run("train", options, "--out", str(tmp_path)).splitlines()[-5:]
    assert [cell.strip() for cell in head.split("|")[3:-1]] == list(COLUMNS)
    assert [row.split("|")[1:3] for row in rows] == [[" 2 ", " DDP "], [" 2 ", " FSDP2 "]]
    figures = json.loads((tmp_path / "train.json").read_text())["rows"]
    assert [figure["library"] for figure in figures] == 2 * ["fake", "gloo", "pynccl"]
    assert all(len(figure["samples"]) == 2 for figure in figures)


def test_row_of_training() -> None:
    pytest.importorskip("torch")
    from benchmarks.train import row

    about = {"ranks": 4, "training": "DDP"}
    seconds = {"fake": 0.1, "gloo": 0.14, "pynccl": 0.11}
    found = row([{**about, "library": name, "seconds": each} for name, each in seconds.items()])
    assert list(found.values()) == pytest.approx([4, "DDP", 140, 110, 100, 40, 10, 0.25])


def test_losses_that_differ_are_refused() -> None:
    pytest.importorskip("torch")
    from benchmarks.ranks import BenchmarkError
    from benchmarks.train import check_losses

    check_losses("DDP", 3, 1.0, 1.0000001)
    for wrong in (1.1, float("nan")):
        with pytest.raises(BenchmarkError, match=r"DDP, step 3: .*over gloo 1\.0"):
            check_losses("DDP", 3, 1.0, wrong)
