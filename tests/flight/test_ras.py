"""Proves what the client of NCCL's RAS service says of ranks that are missing, behind, dead or
silent, and that a service that hangs or lies is an error within the time limit. The service is the
stand-in of tests.support.ras.
"""

from __future__ import annotations

import json
import random
import socket
import time
from typing import Any

import pytest

from pynccl import cli
from pynccl.flight.ras import Query, RasError, parse
from tests.support.ras import Service, communicator, lost, rank, report

_FOUR = [rank(i) for i in range(4)]
_LATE = [rank(0), rank(1), rank(2, 3), rank(3)]


def _three(**fields: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return [rank(0), rank(1), rank(2, **fields), rank(3)]


@pytest.mark.parametrize(
    ("listed", "ranks", "text"),
    [
        (communicator(_FOUR), None, ""),
        (communicator(_LATE), [2], "missing rank 2 (RAS): AllReduce 3 on rank 2, 4 on ranks"),
        # Ranks 1 and 2 are behind rank 0, but rank 1 waits for rank 2.
        (
            communicator([rank(0, 9), rank(1, 5), rank(2, 3), rank(3, 3)]),
            [2, 3],
            "missing ranks 2, 3 (RAS): AllReduce 3 on ranks 2, 3, 5 on rank 1, 9 on rank 0",
        ),
        (communicator(_FOUR[:3], [lost(3, dead=True)]), [3], "missing rank 3 (RAS): dead"),
        (
            communicator(_FOUR[:2], [lost(2), lost(3)]),
            [2, 3],
            "missing ranks 2, 3 (RAS): unreachable",
        ),
        (
            communicator(_FOUR[1:], [lost(0, silent=False)]),
            [0],
            "missing rank 0 (RAS): not in the communicator",
        ),
        (communicator(_FOUR[:3]), [3], "missing rank 3 (RAS): not reported"),
        (communicator(_three(abort_flag=True)), [2], "missing rank 2 (RAS): aborted"),
        (communicator(_three(finalize_called=True)), [2], "missing rank 2 (RAS): finalized"),
        (communicator([rank(i, finalize_called=True) for i in range(4)]), None, ""),
        (
            communicator([*_FOUR[:3], rank(3, 3, collective_counts={"Broadcast": 1, "Reduce": 3})]),
            None,
            "the ranks have launched different collectives (RAS): AllReduce 0 on rank 3, 4 on",
        ),
        # A dead rank does not hide one that is behind.
        (
            communicator([rank(0), rank(1), rank(2, 3)], [lost(3, dead=True)]),
            [2, 3],
            "missing rank 3 (RAS): dead; missing rank 2 (RAS): AllReduce 3 on rank 2",
        ),
    ],
)
def test_the_missing_ranks(listed: dict[str, Any], ranks: list[int] | None, text: str) -> None:
    missing = parse(report(listed)).communicators[0].missing()
    assert missing.ranks == ranks
    assert missing.text.startswith(text)
    assert bool(missing.text) == bool(text)


@pytest.mark.parametrize(
    ("communicators", "waiting", "ranks", "text"),
    [
        ([communicator(_LATE)], 0, [2], "missing rank 2 (RAS): AllReduce 3 on rank 2"),
        ([communicator(_FOUR)], 0, None, "RAS sees no difference"),
        ([communicator(_LATE)], 2, None, "no rank is behind rank 2 (RAS): AllReduce 3 on rank 2"),
        ([communicator(_FOUR), communicator(_LATE)], 0, [2], "missing rank 2 (RAS)"),
        ([communicator(_LATE), communicator(_LATE)], 0, None, "differences in 2 communicators of"),
        ([communicator(_LATE, size=5)], 0, None, "RAS does not list the communicator"),
        ([communicator([rank(0, pid=1), *_LATE[1:]])], 0, None, "RAS does not list"),
    ],
)
def test_the_communicator_of_a_waiting_rank(
    communicators: list[dict[str, Any]], waiting: int, ranks: list[int] | None, text: str
) -> None:
    missing = parse(report(*communicators)).missing(waiting, 4, counted=True)
    assert missing.ranks == ranks
    assert text in missing.text


def test_a_message_is_not_counted() -> None:
    late = communicator(_LATE[:3], [lost(3, dead=True)])
    missing = parse(report(late)).missing(0, 4, counted=False)
    assert missing == ("missing rank 3 (RAS): dead", [3])


def test_the_comma_that_nccl_2_28_omits() -> None:
    text = report(communicator(_FOUR[:3], [lost(3)])).decode()
    begin, _, end = text.rpartition('"nvml_dev": 3,')
    broken = f'{begin}"nvml_dev": 3{end}'
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken)
    assert parse(broken.encode()) == parse(text.encode())


def test_a_query() -> None:
    with Service(report(communicator(_LATE))) as service:
        found = Query(service.address).result()
    assert found.communicators[0].missing().ranks == [2]
    assert service.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]


def test_a_stopped_process_is_not_the_only_one_that_listens() -> None:
    with Service(report(communicator(_FOUR))) as service:
        service.silent = 1
        assert Query(service.address).result().communicators


def _refused(address: str, seconds: float = 0.5) -> str:
    began = time.monotonic()
    with pytest.raises(RasError) as raised:
        Query(address, seconds).result()
    assert time.monotonic() - began < seconds + 5  # on a busy machine
    return str(raised.value)


@pytest.mark.parametrize("word", ["CLIENT", "TIMEOUT", "SET", "STATUS"])
def test_a_service_that_hangs(word: str) -> None:
    with Service() as service:
        service.replies[word] = None
        assert "no answer within 0.5 s" in _refused(service.address)


def test_a_service_that_sends_a_byte_at_a_time() -> None:
    with Service(report(communicator(_FOUR))) as service:
        service.pause = 0.05
        assert "no answer within 0.5 s" in _refused(service.address)


@pytest.mark.parametrize(
    ("word", "reply", "text"),
    [
        ("CLIENT", b"SSH-2.0-OpenSSH_9.2\r\n", "expected 'SERVER PROTOCOL 2', got 'SSH-2.0-"),
        ("CLIENT", b"SERVER PROTOCOL 3\n", "got 'SERVER PROTOCOL 3'"),
        ("CLIENT", b"\0" * 100_000, "does not answer 'CLIENT PROTOCOL 2' with a line"),
        ("SET", b"ERROR: Unknown command SET FORMAT json\n", "run ncclras -v"),
        ("STATUS", b"", "closed the connection without a report"),
        ("STATUS", b"\xff\xfe", "its report is invalid: 'utf-8' codec"),
        ("STATUS", report()[:50], "its report is invalid"),
        ("STATUS", b"[" * 1_000_000, "its report is invalid"),
        ("STATUS", b"[]", r"its report is invalid: [] is not an object"),
        ("STATUS", report(communicator(_FOUR, size=3)), "not in a communicator of 3"),
        ("STATUS", report(communicator([*_FOUR[:3], rank(0)])), "of 4, or twice"),
        ("STATUS", report(communicator([], size=1 << 40)), "a communicator of 1099511627776"),
        ("STATUS", report(communicator([rank(0, -1)])), "a counter is negative"),
        ("STATUS", report(communicator([rank(0, pid=True)])), "True is not of type int"),
        ("STATUS", report(communicator([rank(0, host="\x1b[2J")])), "'\\x1b[2J' is not a name"),
        ("STATUS", report(communicator([rank(0, collective_counts=[1])])), "is not an object"),
    ],
)
def test_a_service_that_lies(word: str, reply: bytes, text: str) -> None:
    with Service() as service:
        service.replies[word] = reply
        assert text in _refused(service.address, 5)


def test_changed_reports() -> None:
    data = report(communicator(_LATE[:3], [lost(3, dead=True)]), communicator(_FOUR))
    chance = random.Random(7)
    accepted = 0
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(data))] = chance.choice(b'0123456789{}[],:"-.enultrfas ')
        try:
            found = parse(bytes(changed))
        except RasError:
            continue
        accepted += 1
        found.missing(0, 4, counted=True)
        for one in found.communicators:
            one.missing()
    assert accepted > 20


def test_a_report_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pynccl.flight.ras._LONGEST_REPORT", 1 << 20)
    with Service(b" " * (3 << 20)) as service:
        assert "exceeds 1 MiB" in _refused(service.address, 5)


@pytest.mark.parametrize("address", ["localhost", "localhost:", "a:b:c", "localhost:70000", ":1"])
def test_an_invalid_address(address: str) -> None:
    assert "the address is not host:port" in _refused(address)


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        address = f"127.0.0.1:{one.getsockname()[1]}"
    assert "Connection refused" in _refused(address)
    monkeypatch.setenv("NCCL_RAS_ADDR", address)
    assert Query().address == address


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    listed = communicator([rank(0), rank(1), rank(2, 3)], [lost(3, dead=True)])
    with Service(report(communicator(_FOUR, name="0x1"), listed)) as service:
        assert cli.main(["ras", "--address", service.address]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert cli.main(["ras", "--address", service.address, "--json"]) == 1
    assert lines[2:6] == [
        "communicator 0x1 of 4 ranks",
        "ranks   state    AllReduce",
        "0 to 3  running          4",
        "  RAS sees no difference",
    ]
    assert "3      dead             -" in lines
    assert "  missing rank 2 (RAS): AllReduce 3 on rank 2, 4 on ranks 0, 1" in lines
    assert any(line.startswith("    rank 3: process ") for line in lines)
    first, second = json.loads(capsys.readouterr().out)["communicators"]
    assert first["missing"] == {"ranks": None, "text": ""}
    assert second["missing"]["ranks"] == [2, 3]


def test_the_command_without_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ras", "--address", "localhost"]) == 2
    assert capsys.readouterr().err == "pynccl ras: RAS at localhost: the address is not host:port\n"
