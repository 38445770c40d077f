"""Proves that trace files are lossless, and that an invalid file is an error of one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pynccl import cli
from pynccl.tools.trace import chrome
from pynccl.tools.trace.model import (
    Communicator,
    GraphLaunch,
    Operation,
    ProcessTrace,
    Range,
    TraceError,
    Wait,
)
from tests.support.tier import FULL
from tests.support.traces import TraceBuilder


@st.composite
def _traces(draw: st.DrawFn) -> ProcessTrace:
    """Arbitrary values of the fields' types, with a communicator for each rank."""
    communicator = st.builds(
        Communicator,
        provider=st.sampled_from(["host", "cuda"]),
        rank=st.integers(0, 7),
        nranks=st.integers(8, 9),
    )
    communicators = draw(st.lists(communicator, min_size=1, max_size=2))
    ids = st.sampled_from([*(one.id for one in communicators), "missing"])
    kinds = st.sampled_from(["all_reduce", "gather", "send", "recv", "put_signal", "barrier"])
    numbers = st.none() | st.integers(1, 3)
    operation = st.builds(
        Operation,
        kind=kinds,
        communicator=ids,
        number=numbers,
        group=numbers,
        graph=numbers,
    )
    operations = st.lists(operation, max_size=6)
    return draw(
        st.builds(
            ProcessTrace,
            communicators=st.just({(one.id, one.rank): one for one in communicators}),
            operations=operations,
            waits=st.lists(st.builds(Wait, communicator=st.none() | ids), max_size=3),
            ranges=st.lists(st.builds(Range), max_size=3),
            launches=st.lists(st.builds(GraphLaunch, graph=numbers.filter(bool)), max_size=2),
            runs=operations,
        )
    )


@given(_traces())
@settings(max_examples=200 if FULL else 50)
def test_traces_are_restored_from_files(trace: ProcessTrace) -> None:
    assert chrome.parse(json.dumps(chrome.document(trace))) == [trace]


def test_several_processes_and_compression(tmp_path: Path) -> None:
    traces = [TraceBuilder(rank, 2, shift=rank * 777).trace for rank in range(2)]
    for name in ("merged.json", "merged.json.gz"):
        chrome.save(traces, tmp_path / name)
        assert chrome.load(str(tmp_path / name)) == traces
    assert (tmp_path / "merged.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def _document(change: Any = None) -> str:  # noqa: ANN401
    """A file with one operation, changed."""
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 2)
    document = chrome.document(builder.trace)
    if change is not None:
        change(document["pynccl"])
    return json.dumps(document)


def _set(name: str, value: object) -> Any:  # noqa: ANN401
    return lambda own: own["processes"][0].__setitem__(name, value)


def _set_operation(name: str, value: object) -> Any:  # noqa: ANN401
    def change(own: dict[str, Any]) -> None:
        own["processes"][0]["operations"][0][name] = value

    return change


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("garbage", "it is truncated, or not JSON"),
        (_document()[:-200], "it is truncated, or not JSON"),
        ("[" * 100_000, "it is truncated, or not JSON"),
        ("[]", "it has no 'pynccl trace'"),
        ('{"traceEvents": []}', "it has no 'pynccl trace'"),
        ('{"pynccl": {"format": "pynccl flight record"}}', "it has no 'pynccl trace'"),
        (_document(lambda own: own.update(version=1)), "its version is 1; this pynccl reads 2"),
        (_document(lambda own: own.update(processes=[])), "it contains no process"),
        (_document(lambda own: own.update(processes=[7])), "process 0: 7 is not an object with"),
        (_document(lambda own: own["processes"][0].pop("pid")), "process 0: pid is missing"),
        (_document(_set("pid", "7")), "process 0: pid: '7' is not of type int"),
        (_document(_set("pid", True)), "pid: True is not of type int"),
        (_document(_set("timed", 1)), "timed: 1 is not of type bool"),
        (_document(_set("communicators", {})), "is not an object with a list of communicators"),
        (_document(_set("operations", {})), "operations: {} is not a list"),
        (_document(_set("waits", [{}])), "waits: what is missing"),
        (_document(_set_operation("kind", None)), "operations: kind: None is not of type str"),
        (_document(_set_operation("began", 1.5)), "operations: began: 1.5 is not of type int"),
    ],
)
def test_invalid_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(
        TraceError, match=r"trace.json: this is not a trace or recording of pynccl: "
    ) as raised:
        chrome.load(path)
    assert says in str(raised.value)
    for command in (["show"], ["check"], ["merge", "-o", str(tmp_path / "out.json")]):
        assert cli.main(["trace", *command, str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pynccl trace: ")
        assert says in line


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "show", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    for data in (b"\x80\x04\x95", gzip.compress(_document().encode())[:-9], b"\x1f\x8b\x08"):
        path = tmp_path / "binary"
        path.write_bytes(data)
        assert cli.main(["trace", "show", str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "this is not a trace or recording of pynccl" in line


def test_unknown_members_are_ignored() -> None:
    def change(own: dict[str, Any]) -> None:
        own["processes"][0]["later"] = 1
        own["processes"][0]["operations"][0]["later"] = {}

    assert chrome.parse(_document(change)) == chrome.parse(_document())


def test_nothing_is_written_without_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="traces: expected at least one"):
        chrome.save([], tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()
