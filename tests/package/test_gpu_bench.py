"""Proves that the benchmark for GPUs runs from end to end over CPUs, and that the files of each
section contain its ratios, name the machine but none of its paths, and are written even if a part
fails.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tier import FULL

pytest.importorskip("torch")

from benchmarks import gpu
from benchmarks.gpu import SECTIONS, Done, Start
from benchmarks.machine import ROOT, Machine
from benchmarks.ranks import BenchmarkError
from benchmarks.timing import Elapsed, figures, samples
from benchmarks.world import Settings
from tests.support.commands import run_python


def _tables(text: str) -> list[list[dict[str, str]]]:
    """The rows of each table, by column."""
    tables = []
    for part in text.split("\n\n"):
        if part.startswith("|"):
            head, _, *rows = (
                [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()
            )
            tables.append([dict(zip(head, row, strict=True)) for row in rows])
    return tables


def test_calls_that_take_no_time_by_the_clock() -> None:
    nothing = Elapsed(0.0)
    assert samples({"x": lambda _calls: nothing}, 2, 0.01) == {"x": [nothing, nothing]}


@pytest.mark.skipif(not FULL, reason="half a minute of measuring: `make test-all`")
def test_a_dry_run_writes_every_section(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--quick", "--ranks", "1,2", "--out", str(tmp_path))
    done = run_python("-m", "benchmarks.gpu", *options, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    failed = [path for path in tmp_path.glob("*.json") if json.loads(path.read_text())["failures"]]
    assert not failed
    for section in SECTIONS:
        path = tmp_path / f"2ranks-{section}.json"
        text = path.with_suffix(".md").read_text()
        content = json.loads(path.read_text())
        assert content["rows"], section
        versions = _tables(text)[-1]
        assert "hostnccl" in [row["what"] for row in versions]
        assert "dry run" in text
        for whole in (text, json.dumps(content)):
            assert str(ROOT) not in whole
            assert socket.gethostname() not in whole
            assert sys.prefix not in whole
    tables = {
        section: _tables((tmp_path / f"2ranks-{section}.md").read_text())[0] for section in SECTIONS
    }
    calls = {row["way"]: row for row in tables["calls"]}
    assert calls["NCCL's C function, from C"]["over c us"] == "0.00"
    assert float(calls["torch.distributed"]["times faster"]) == 1
    for way in ("pynccl as dist", "torch.distributed pynccl, async, wait"):
        assert float(calls[way]["times faster"]) > 0
    assert all(row["hidden"].endswith("%") for row in tables["lab"])
    assert {row["library"] for row in tables["collectives"]} == {
        "pynccl",
        "torch gloo",
        "pynccl as dist",
        "torch pynccl",
    }
    assert all(float(row["times faster"]) > 0 for row in tables["collectives"])


def test_a_section_of_a_shared_gpu_that_failed(tmp_path: Path) -> None:
    """With the results of GPUs only: the host time, and ranks that share a GPU."""
    engine = "nccl (ProcessGroupNCCL2)"
    machine = Machine("a CPU", 8, ("NVIDIA T9000",), "Linux", {"NCCL": "2.28.9"})
    absent = {"torch nccl4py": "nccl4py is not installed:\npip install nccl4py"}
    section = gpu.Section("collectives", 4, machine, Start(1, engine, absent))
    theirs = f"torch {engine}"
    measured = {"pynccl": [Elapsed(2e-5, 3e-6)], theirs: [Elapsed(4e-5, 9e-6)]}
    # The last of repeated measurements counts.
    for baseline in ("", theirs):
        about = {"collective": "all_reduce", "bytes": 4096}
        for figure in figures(measured, lambda _, name=baseline: name, **about):  # type: ignore[misc]
            section.take({**figure, "busbw": 4.5e-5 / figure["seconds"]})
    section.take("a note")
    section.failures.append("rank 1 was ended by SIGSEGV")
    section.write(tmp_path)
    text = (tmp_path / "4ranks-collectives.md").read_text()
    assert "4 ranks sharing 1 GPU, on NVIDIA T9000" in text
    assert "SIGSEGV" in text
    assert "Note: a note" in text
    assert f"torch's engine is {engine}." in text
    rows, absent_rows, _ = _tables(text)
    names = ("us", "times faster", "host us", "host times faster", "busbw")
    assert [[row[name] for name in names] for row in rows] == [
        ["20.0", "2.00", "3.00", "3.00", "2.25"],
        ["40.0", "1.00", "9.00", "1.00", "1.12"],
    ]
    assert [row["bytes"] for row in rows] == ["4 KiB", "4 KiB"]
    assert absent_rows == [
        {"library": "torch nccl4py", "why": "nccl4py is not installed: pip install nccl4py"}
    ]
    content = json.loads((tmp_path / "4ranks-collectives.json").read_text())
    assert [row["samples"] for row in content["rows"]] == [[2e-5], [4e-5]]
    assert content["start"]["engine"] == engine


def _options(out: Path) -> argparse.Namespace:
    settings = {"quick": True, "device": "cpu", "repeats": 3, "unbuilt": "", "total": 60.0}
    return argparse.Namespace(out=out, sections=SECTIONS, **settings)


def test_a_failed_start_is_repeated_without_the_other_backends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried: list[bool] = []

    def run(*arguments: object, others: bool, **options: object) -> None:
        tried.append(others)
        if others:
            raise BenchmarkError("a backend hung")

    monkeypatch.setattr(gpu, "_run", run)
    assert gpu._measure(Machine("a CPU", 8, (), "Linux", {}), _options(tmp_path), 2, 60.0)
    assert tried == [True, False]
    assert json.loads((tmp_path / "2ranks-calls.json").read_text())["failures"] == [
        "a backend hung"
    ]


def test_a_section_that_fails_does_not_affect_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worlds: list[list[str]] = []

    def ranks(
        _nranks: int, _rank: object, arguments: tuple[Settings, list[str], bool], _silence: float
    ) -> Iterator[object]:
        sections = arguments[1]
        worlds.append(sections)
        yield Start(0, "gloo", {})
        for section in sections:
            yield {"way": section, "seconds": 1e-6}
            if section == "lab":
                raise BenchmarkError("a rank died")
            yield Done(1.0)

    monkeypatch.setattr(gpu, "run_ranks", ranks)
    assert gpu._measure(Machine("a CPU", 8, (), "Linux", {}), _options(tmp_path), 2, 60.0)
    assert worlds == [[*SECTIONS], ["collectives", "sequences"]]
    for section in SECTIONS:
        content = json.loads((tmp_path / f"2ranks-{section}.json").read_text())
        assert [row["way"] for row in content["rows"]] == [section]
        assert content["failures"] == (["a rank died"] if section == "lab" else [])
