"""Proves that the benchmark for GPUs runs from end to end, over CPUs, and that its report has every
section with its ratios, names the machine and none of its paths, and is complete when a part fails.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tier import FULL

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from benchmarks import gpu
from benchmarks.gpu_figures import (
    SECTIONS,
    Agenda,
    CallCost,
    LabRow,
    Overlap,
    Sequence,
    Start,
)
from benchmarks.gpu_report import Findings
from benchmarks.machine import ROOT, Machine
from benchmarks.ranks import BenchmarkError
from benchmarks.results import Absent, Note, Row, Timing

_SECTIONS = (
    "Not measured",
    "The host's time in one all_reduce",
    "20 all_reduce in sequence",
    "A matrix product at the same time",
    "The overlap lab",
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


@pytest.mark.skipif(not FULL, reason="half a minute of measuring: `make test-all`")
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
    assert [row[0] for row in tables["Not measured"]] == ["torch nccl-legacy", "torch nccl4py"]
    calls = {row[0]: row[1:] for row in tables[_SECTIONS[1]]}
    assert calls["pynccl Communicator"][1][0] in "+-"  # over the C call
    assert float(calls["pynccl as dist"][2]) > 0
    assert float(calls["torch.distributed gloo"][2]) == 1
    assert float(calls["torch.distributed pynccl, async, wait"][2]) > 0
    assert any(row[0] == "torch gloo / pynccl, called" for row in tables[_SECTIONS[2]])
    assert all(row[-1].endswith(" %") for row in tables[_SECTIONS[3]])
    of_libraries = "| pynccl, us | torch gloo, us | pynccl as dist, us | torch pynccl, us |"
    assert text.count(of_libraries) == 2
    for row in tables["Latency"] + tables["Bandwidth"]:
        for cell in (row[2], row[4], row[5]):
            assert re.fullmatch(r"[\d.]+ \([\d.]+\)", cell), row
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
    engine = "nccl (ProcessGroupNCCL2)"
    timing = Timing("pynccl", 2e-5, (2e-5,), 10, 3e-6, 1.5, 2.25)
    slower = Timing(f"torch {engine}", 4e-5, (4e-5,), 10, 9e-6, 0.75, 1.125)
    backend = Timing("torch pynccl", 2.5e-5, (2.5e-5,), 10, 6e-6, 1.2, 1.8)
    for message in (
        Start(4, 1, engine),
        Absent("torch nccl4py", "nccl4py is not installed:\npip install nccl4py"),
        CallCost(4, "pynccl.raw, integers", 4096, 2e-6, (2e-6,)),
        CallCost(4, "torch.distributed", 4096, 8e-6, (8e-6,)),
        CallCost(4, "torch.distributed, async, wait", 4096, 9e-6, (9e-6,)),
        CallCost(4, "torch.distributed pynccl, async, wait", 4096, 6e-6, (6e-6,)),
        *(
            Sequence(4, f"{library}, a CUDA graph", "all_reduce", 20, 8, seconds, (seconds,))
            for library, seconds in (("pynccl", 9e-6), ("pynccl", 3e-6), ("torch", 6e-6))
        ),
        Overlap(4, "pynccl, 1 CTA", "all_reduce", 1 << 24, 2e-3, 1e-3, 2.25e-3),
        LabRow(4, "16", "all_reduce", 1 << 24, 2e-3, 1e-3, 2.5e-3, 0.5, 1.25, 1.5, "hidden: not"),
        Row("all_reduce", 4096, timing, slower, (backend,)),
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
    assert f"torch's engine is {engine}." in text
    assert tables["Not measured"] == [
        ["torch nccl4py", "nccl4py is not installed: pip install nccl4py"]
    ]
    # A call that is waited for is compared with one that is.
    assert tables["The host's time in one all_reduce"] == [
        ["pynccl.raw, integers", "2.00", "-", "4.00"],
        [f"torch.distributed {engine}", "8.00", "-", "1.00"],
        [f"torch.distributed {engine}, async, wait", "9.00", "-", "1.00"],
        ["torch.distributed pynccl, async, wait", "6.00", "-", "1.50"],
    ]
    # Of repeated measurements the last counts.
    assert tables["20 all_reduce in sequence"] == [
        ["pynccl, a CUDA graph", "3.00"],
        [f"torch {engine}, a CUDA graph", "6.00"],
        [f"torch {engine} / pynccl, a CUDA graph", "2.00"],
    ]
    assert tables["A matrix product at the same time"][0][-1] == "75 %"
    assert tables["The overlap lab"] == [
        ["all_reduce", "16 MB", "16", "2000", "1000", "2500", "50 %", "1.25 / 1.50", "hidden: not"]
    ]
    assert tables["Latency"] == [
        ["all_reduce", "4096", "20.0 (2.00)", "40.0", "25.0 (1.60)"],
    ]
    assert tables["The host's time in the calls"] == [
        ["all_reduce", "4096", "3.00 (3.00)", "9.00", "6.00 (1.50)"],
    ]
    assert tables["Bandwidth"] == [["all_reduce", "1 MB", "20.0", "2.25"]]


def test_what_is_done_after_a_failure() -> None:
    agenda: Agenda | None = Agenda(SECTIONS, frozenset(), quick=True)
    assert agenda
    agenda = agenda.after({"calls"}, ("a",))
    assert agenda == Agenda(SECTIONS[2:], frozenset(), quick=True)
    assert agenda
    agenda = agenda.after({"overlap", "lab", "collectives"}, ("a",))
    assert agenda == Agenda(("sequences",), frozenset("a"), quick=True)
    assert agenda
    assert agenda.after(set(), ("a",)) is None
    assert Agenda(SECTIONS, frozenset(), quick=True).after(set(SECTIONS), ()) is None


def test_ranks_that_do_not_come_up_do_so_without_the_other_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[bool] = []

    def run(*arguments: object, others: bool, **options: object) -> None:
        tried.append(others)
        if others:
            raise BenchmarkError("a backend hung")

    monkeypatch.setattr(gpu, "_run", run)
    findings = Findings(Machine("a CPU", 8, (), "Linux", {}), "cpu")
    gpu._measure(findings, argparse.Namespace(quick=True, device="cpu"), 2, 60.0)
    assert tried == [True, False]
    assert findings.failures == {2: ["a backend hung"]}
