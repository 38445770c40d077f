"""Proves that the benchmark for GPUs runs from end to end, over CPUs, and that its report has every
section with its ratios, names the machine and none of its paths, and is complete when a part fails.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks.gpu_figures import SECTIONS, Agenda, CallCost, Overlap, Sequence, Start
from benchmarks.gpu_report import Findings
from benchmarks.machine import ROOT, Machine
from benchmarks.results import Note, Row, Timing

_SECTIONS = (
    "The host's time in one all_reduce",
    "20 all_reduce in sequence",
    "A matrix product at the same time",
    "Latency",
    "Bandwidth",
)


def _tables(text: str) -> dict[str, list[list[str]]]:
    """The cells of each section's table, without its head."""
    tables = {}
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        tables[part.splitlines()[0]] = cells[2:]
    return tables


def test_a_dry_run_gives_the_whole_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--quick"]
    done = subprocess.run(
        [*command, "--ranks", "2", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("*-cpu-bench.md")
    text = written.read_text()
    tables = _tables(text)
    for section in ("Machine", *_SECTIONS):
        assert tables[section], section
        assert all(all(row) for row in tables[section]), section
    calls = {row[0]: row[1:] for row in tables[_SECTIONS[0]]}
    assert calls["pynccl Communicator"][1][0] in "+-"  # over the C call
    assert float(calls["pynccl as dist"][2]) > 0
    assert any(row[0] == "torch / pynccl, called" for row in tables[_SECTIONS[1]])
    assert all(row[-1].endswith(" %") for row in tables[_SECTIONS[2]])
    assert all(float(row[4]) > 0 for row in tables["Latency"] + tables["Bandwidth"])
    assert "dry run" in text
    content = json.loads(written.with_suffix(".json").read_text())
    assert len(content["figures"]["2"]) > 40
    assert not content["failures"]
    assert len(list(tmp_path.glob("*-2ranks.png"))) == 1
    for whole in (text, json.dumps(content)):
        assert str(ROOT) not in whole
        assert socket.gethostname() not in whole
        assert sys.prefix not in whole


def test_the_report_of_a_shared_gpu_that_failed_in_part(tmp_path: Path) -> None:
    """With what only GPUs give: the host's own time, graphs, and ranks that share one."""
    machine = Machine("a CPU", 8, ("NVIDIA T9000",), "Linux", {"NCCL": "2.28.9"})
    findings = Findings(machine, "cuda")
    timing = Timing("pynccl", 2e-5, (2e-5,), 10, 3e-6, 1.5, 2.25)
    slower = Timing("torch nccl", 4e-5, (4e-5,), 10, 9e-6, 0.75, 1.125)
    for message in (
        Start(4, 1),
        CallCost(4, "pynccl.raw, integers", 4096, 2e-6, (2e-6,)),
        *(
            Sequence(4, f"{library}, a CUDA graph", "all_reduce", 20, 8, seconds, (seconds,))
            for library, seconds in (("pynccl", 9e-6), ("pynccl", 3e-6), ("torch", 6e-6))
        ),
        Overlap(4, "pynccl, 1 CTA", "all_reduce", 1 << 24, 2e-3, 1e-3, 2.25e-3),
        Row("all_reduce", 4096, timing, slower),
        Row("all_reduce", 1 << 20, timing, None),
        Note("a note"),
    ):
        findings.take(4, message)
    findings.fail(4, "rank 1 was ended by SIGSEGV")
    names = {path.suffix: path for path in findings.write(tmp_path / "x-t9000-bench", "x", 1)}
    text = names[".md"].read_text()
    tables = _tables(text)
    assert "## 4 ranks sharing 1 GPU" in text
    assert "SIGSEGV" in text
    assert "Note: a note" in text
    # Of repeated measurements the last counts.
    assert tables["20 all_reduce in sequence"] == [
        ["pynccl, a CUDA graph", "3.00"],
        ["torch, a CUDA graph", "6.00"],
        ["torch / pynccl, a CUDA graph", "2.00"],
    ]
    assert tables["A matrix product at the same time"][0][-1] == "75 %"
    assert tables["Latency"] == [
        ["all_reduce", "4096", "20.0", "40.0", "2.00", "3.00", "9.00"],
    ]
    assert tables["Bandwidth"][0][3:] == ["-", "-", "1.50", "2.25", "-"]


def test_what_is_done_after_a_failure() -> None:
    agenda: Agenda | None = Agenda(SECTIONS, frozenset(), quick=True)
    assert agenda
    agenda = agenda.after({"calls"}, ("a",))
    assert agenda == Agenda(SECTIONS[2:], frozenset(), quick=True)
    assert agenda
    agenda = agenda.after({"collectives"}, ("a",))
    assert agenda == Agenda(("sequences",), frozenset("a"), quick=True)
    assert agenda
    assert agenda.after(set(), ("a",)) is None
    assert Agenda(SECTIONS, frozenset(), quick=True).after(set(SECTIONS), ()) is None
