"""Proves that the client of NCCL's RAS service names missing, late, dead and silent ranks, and that
a silent service and an invalid answer are errors within the time limit. The service is the stand-in
of tests.support.ras.
"""

from __future__ import annotations

import contextlib
import json
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


def test_an_address_that_drops_packets_is_not_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(4):  # from the second or third one on, there is no answer
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        with Service(report(communicator(_FOUR))) as service:
            ours = ("127.0.0.1", int(service.address.rpartition(":")[2]))
            kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
            found = [(*kind, full.getsockname()), (*kind, ours)]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            assert Query("job:28028", 5).result().communicators


def _refused(address: str, seconds: float = 0.5) -> str:
    began = time.monotonic()
    with pytest.raises(RasError) as raised:
        Query(address, seconds).result()
    assert time.monotonic() - began < seconds + 5  # on a busy machine
    return str(raised.value)


@pytest.mark.parametrize("word", ["CLIENT", "TIMEOUT", "SET", "STATUS"])
def test_a_silent_service(word: str) -> None:
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
def test_an_invalid_answer(word: str, reply: bytes, text: str) -> None:
    with Service() as service:
        service.replies[word] = reply
        assert text in _refused(service.address, 5)


@pytest.mark.parametrize("word", ["CLIENT", "TIMEOUT", "SET", "STATUS"])
def test_a_service_that_sends_a_gigabyte(word: str) -> None:
    """Memory is bounded, and the answer is not read to the end."""
    with Service() as service:
        service.replies[word] = b"x" * (1 << 20)
        service.times = 1024
        text = _refused(service.address, 2)
    assert ("its report exceeds 64 MiB" if word == "STATUS" else "with a line") in text or (
        "no answer within 2 s" in text  # on a busy machine
    )


def test_a_report_that_keeps_a_job_busy() -> None:
    """Limits on ranks, counters and bytes bound the time that other threads wait."""
    many = [communicator([], size=1 << 19, name=f"{i}") for i in range(3)]
    with pytest.raises(RasError, match="a communicator of 524288 ranks"):
        parse(report(*many))
    counters = [rank(i, collective_counts={f"{i}.{j}": 1 for j in range(33)}) for i in range(2)]
    with pytest.raises(RasError, match="66 counters"):
        parse(report(communicator(counters, size=2)))
    with Service(b" " * (3 << 20)) as service:
        began = time.monotonic()
        with pytest.raises(RasError, match="its report exceeds 1 MiB"):
            Query(service.address, 5, longest=1 << 20).result()
        assert time.monotonic() - began < 5
    # Two million objects, as a report in a job may have.
    data = b"[" + b"{}," * ((16 << 20) // 3 - 2) + b"{}]"
    with Service(data) as service:
        query = Query(service.address, 5, longest=16 << 20)
        longest, last = 0.0, time.monotonic()
        while query._thread.is_alive():
            time.sleep(0.001)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        with pytest.raises(RasError, match="is not an object"):
            query.result()
    assert longest < 3  # about 0.4 s on an idle machine


@pytest.mark.parametrize("seconds", [0.1, 0.5])
@pytest.mark.parametrize("word", ["CLIENT", "TIMEOUT", "SET", "STATUS"])
def test_a_service_that_closes_early(word: str, seconds: float) -> None:
    with Service() as service:
        service.replies[word] = b""
        service.closes = word
        text = _refused(service.address, seconds)
    assert "closed the connection without" in text or "with a line: not NCCL" in text


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "localhost:",
        "a:b:c",
        "localhost:70000",
        ":1",
        "",
        "::1:28028",
        "[]:1",
        "[::1]",
        "[::1]:",
        "localhost:-1",
        "localhost:28028\n",
        "http://localhost:1",
    ],
)
def test_an_invalid_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if address:
        assert "the address is not host:port" in _refused(address)
    monkeypatch.setenv("NCCL_RAS_ADDR", address)
    assert Query(seconds=0.01).address == (address or "localhost:28028")


@pytest.mark.parametrize("host", ["a\0b", "a" * 64, "..", "[127.0.0.1%x]", "[1::2::3]", "\ud800"])
def test_a_host_without_an_address(host: str) -> None:
    _refused(f"{host}:1", 5)


@pytest.mark.skipif(not socket.has_ipv6, reason="the machine has no IPv6")
def test_an_ipv6_address() -> None:
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("the machine has no address ::1")
    with Service(report(communicator(_LATE)), listening) as service:
        assert service.address.startswith("[::1]:")
        assert Query(service.address).result().communicators[0].missing().ranks == [2]


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
