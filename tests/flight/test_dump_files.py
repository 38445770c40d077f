"""Proves that only complete dumps are read, and the output of ``pynccl flight``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pynccl import cli
from pynccl.flight.dump import DumpError, load
from tests.support.flight_dumps import communicator, dump_json, record

_WAITS = [record("all_reduce", "issued", age=3)]


def _write(folder: Path, *texts: str) -> list[str]:
    paths = [folder / f"flight_{rank}" for rank in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def test_a_dump_is_read(tmp_path: Path) -> None:
    (path,) = _write(tmp_path, dump_json(3, communicator(1, 2, _WAITS)))
    dump = load(path)
    assert (dump.rank, dump.path, dump.communicators[0].rank) == (3, path, 1)
    assert dump.communicators[0].records[0].is_open


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("no dump", "it is truncated, or not JSON"),
        (dump_json(0, communicator(0, 2, _WAITS))[:-40], "it is truncated, or not JSON"),
        ("[1, 2]", "it has no 'pynccl flight record'"),
        ('{"format": "another"}', "it has no 'pynccl flight record'"),
        (dump_json(0, version=2), "its version is 2; this pynccl reads 1"),
        (dump_json(0, pid="7"), "pid: '7' is not of type int"),
        (dump_json(0, communicators=3), "communicators: 3 is not a list"),
        (dump_json(0, communicators=[3]), "communicators: 3 is not an object"),
        (dump_json(0, communicator(0, 2, [], failure=3)), "failure: 3 is not of type str"),
        (dump_json(0, communicator(0, 2, [{**_WAITS[0], "state": None}])), "state: None is not"),
        ('{"format": "pynccl flight record", "version": 1}', "reason is missing"),
    ],
)
def test_invalid_dumps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    (path,) = _write(tmp_path, text)
    with pytest.raises(DumpError, match="flight_0: ") as raised:
        load(path)
    assert says in str(raised.value)
    assert cli.main(["flight", path]) == 2
    assert says in capsys.readouterr().err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flight", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\x04\x95")
    assert cli.main(["flight", str(binary)]) == 2
    assert "this is not a flight record of pynccl, which is text" in capsys.readouterr().err


def test_the_command_prints_the_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [dump_json(r, communicator(r, 2, _WAITS if r else [])) for r in range(2)]
    paths = _write(tmp_path, *texts)
    assert cli.main(["flight", *paths]) == 1
    assert "rank 0 has not issued #1 all_reduce" in capsys.readouterr().out
    assert cli.main(["flight", "--json", *paths]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["ranks"], finding["waiting"]) == ("behind", [0], [1])
    assert finding["seconds"] == 3


def test_without_findings_the_command_returns_0(tmp_path: Path) -> None:
    texts = [dump_json(r, communicator(r, 2, [record("broadcast")])) for r in range(2)]
    assert cli.main(["flight", *_write(tmp_path, *texts)]) == 0
