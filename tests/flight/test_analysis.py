"""Proves that the analysis names the waiting and the differing ranks of constructed dumps."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest

from pynccl.flight.analysis import Finding, Report, analyse
from pynccl.flight.dump import DumpError
from tests.support.flight_dumps import NOW, communicator, dump, record

_LOOP = [record("all_reduce") for _ in range(5)]


def _report(*programs: list[dict[str, Any]], missing: int = 0, **fields: object) -> Report:
    """The findings about a communicator, given the operations of each rank."""
    nranks = len(programs) + missing
    return analyse(
        [dump(r, communicator(r, nranks, own, **fields)) for r, own in enumerate(programs)]
    )


def _finding(*programs: list[dict[str, Any]], **fields: object) -> Finding:
    findings = _report(*programs, **fields).findings
    assert len(findings) == 1, findings
    return findings[0]


def test_completed_operations_are_not_findings() -> None:
    report = _report(_LOOP, _LOOP)
    assert not report.findings
    assert "no rank waits for another" in report.text()


def test_a_rank_that_is_behind() -> None:
    waits = [*_LOOP, record("all_reduce", "issued", age=12.3)]
    finding = _finding(waits, waits, _LOOP, waits)
    assert (finding.kind, finding.ranks, finding.waiting) == ("behind", [2], [0, 1, 3])
    assert finding.text == (
        "rank 2 has not issued #6 all_reduce(float32, count=4, sum); its last is #5, done; "
        "ranks 0, 1, 3 wait in it for 12.3 s"
    )


def test_ranks_that_are_behind_each_other() -> None:
    first, second = _report(_LOOP, _LOOP[:3], _LOOP[:3], _LOOP[:4]).findings
    assert (first.ranks, first.number, second.ranks, second.number) == ([1, 2], 4, [3], 5)
    assert "ranks 1, 2 have not issued #4" in first.text
    assert "their last is #3, done; ranks 0, 3 went on" in first.text


def test_a_rank_without_calls() -> None:
    finding = _finding([record("broadcast", "called", age=2)], [])
    assert "rank 1 has not issued #1 broadcast(float32, count=4, root=0)" in finding.text
    assert "no collective was called so far" in finding.text


def test_where_a_late_rank_waits() -> None:
    """Two communicators in opposite orders."""
    waits = [record("all_reduce", "called", age=3)]
    dumps = [
        dump(0, communicator(0, 2, waits), communicator(0, 2, [], id="b" * 16, name="pp")),
        dump(1, communicator(1, 2, []), communicator(1, 2, waits, id="b" * 16, name="pp")),
    ]
    first, second = analyse(dumps).findings
    assert "rank 1 has not issued #1 all_reduce" in first.text
    assert (
        f"rank 1 waits in #1 all_reduce(float32, count=4, sum) of communicator 'pp' {'b' * 16}"
        in (first.text)
    )
    assert "rank 0 has not issued #1 all_reduce" in second.text
    assert f"rank 0 waits in #1 all_reduce(float32, count=4, sum) of communicator {'a' * 16}" in (
        second.text
    )


def test_a_message_that_the_rank_behind_waits_for() -> None:
    receives = [record("recv", "called", age=4, peer=0)]
    text = _report([record("all_reduce", "called", age=3)], receives).findings[0].text
    assert "rank 1 waits in #1 recv(float32, count=4, peer=0) for 4.0 s" in text


@pytest.mark.parametrize(
    ("wrong", "called"),
    [
        (record("broadcast"), r"broadcast\(float32, count=4, root=0\)"),
        (record("all_reduce", count=5), r"all_reduce\(float32, count=5, sum\)"),
        (record("all_reduce", dtype="float64"), r"all_reduce\(float64, count=4, sum\)"),
        (record("all_reduce", op="max"), r"all_reduce\(float32, count=4, max\)"),
    ],
)
def test_another_call(wrong: dict[str, Any], called: str) -> None:
    right = [*_LOOP, record("all_reduce", "issued", age=5)]
    finding = _finding(right, [*_LOOP, wrong | {"state": "issued"}], right)
    assert (finding.kind, finding.ranks, finding.waiting) == ("mismatch", [1], [0, 2])
    assert re.fullmatch(
        rf"rank 1 called {called} as #6 where ranks 0, 2 called all_reduce\(float32, count=4, sum\)"
        r"; ranks 0, 2 wait in it for 5\.0 s",
        finding.text,
    ), finding.text


def test_another_root() -> None:
    finding = _finding([record("broadcast", root=0)], [record("broadcast", root=1)])
    assert "rank 1 called broadcast(float32, count=4, root=1) as #1" in finding.text


def test_a_skipped_call_is_recognised_by_what_follows() -> None:
    program = [record("all_reduce", count=n) for n in range(1, 8)]
    finding = _finding(program, program[:2] + program[3:], program)
    assert (finding.kind, finding.ranks, finding.number) == ("skipped", [1], 3)
    assert "it has skipped #3" in finding.text


def test_a_mismatch_before_the_records_is_seen_by_the_fingerprints() -> None:
    usual = [record("all_reduce", count=n) for n in (1, 2, 3, 4)]
    other = [record("all_reduce", count=9), *usual[1:]]
    finding = _finding(usual, other, usual, lost=2)
    assert (finding.kind, finding.ranks) == ("mismatch", [1])
    assert "before #3" in finding.text


def test_ranks_farther_apart_than_the_records() -> None:
    finding = _finding(_LOOP * 3, _LOOP, lost=8)
    assert (finding.kind, finding.ranks, finding.number) == ("behind", [1], 6)
    assert finding.text == ("rank 1 has not issued #6; its last is #5; rank 0 went on")


def test_all_ranks_in_the_same_operation() -> None:
    stuck = [*_LOOP, record("all_reduce", "issued", age=7), record("all_reduce", "issued", age=6)]
    finding = _finding(stuck, stuck)
    assert (finding.kind, finding.waiting, finding.number) == ("stuck", [0, 1], 6)
    assert finding.text.startswith("all ranks have issued #6 all_reduce")
    assert "ranks 0, 1 wait in it for 7.0 s" in finding.text


def test_ranks_without_a_file() -> None:
    waits = [record("all_reduce", "issued", age=8)]
    stuck, missing = _report(waits, waits, missing=2).findings
    assert "ranks 0, 1 have issued #1 all_reduce" in stuck.text
    stuck, *_ = _report(waits, missing=3).findings
    assert "rank 0 has issued #1 all_reduce" in stuck.text
    assert missing.text == "there is no file of ranks 2, 3"
    assert missing.ranks == [2, 3]


def test_a_message_to_a_rank_without_a_file() -> None:
    (missing,) = _report([record("recv", "called", age=2, peer=1)], missing=1).findings
    assert "rank 0 waits in #1 recv(float32, count=4, peer=1) for 2.0 s" in missing.text


def test_a_send_without_a_receive() -> None:
    sends = [record("send", peer=1), record("send", "issued", age=9, peer=1)]
    finding = _finding(sends, [record("recv", peer=0)])
    assert (finding.kind, finding.ranks, finding.waiting) == ("unmatched_send", [1], [0])
    assert finding.text == (
        "send #2(float32, count=4, peer=1) of rank 0 to rank 1 has no receive: rank 1 has called 1 "
        "from rank 0; rank 0 waits in it for 9.0 s"
    )


def test_a_receive_without_a_send() -> None:
    receives = [record("recv", "called", age=9, peer=1) for _ in range(3)]
    finding = _finding(receives, [])
    assert (finding.kind, finding.ranks) == ("unmatched_recv", [1])
    assert "of rank 0 from rank 1 and 2 more has no send: rank 1 has called 0 to rank 0" in (
        finding.text
    )


def test_messages_of_other_sizes() -> None:
    finding = _finding([record("send", peer=1, count=8)], [record("recv", peer=0, count=4)])
    assert finding.kind == "message_mismatch"
    assert "has (float32, count=8), its receive (float32, count=4)" in finding.text


def test_messages_whose_records_were_lost_are_not_compared() -> None:
    sends = [record("send", peer=1) for _ in range(6)]
    receives = [record("recv", peer=0) for _ in range(6)]
    program = [*receives, *_LOOP]
    dumps = [
        dump(0, communicator(0, 2, [*_LOOP, *sends])),
        dump(1, communicator(1, 2, program, lost=6)),
    ]
    assert not analyse(dumps).findings


def test_a_call_other_than_an_operation() -> None:
    call = {"function": "ncclCommSplit", "time_created_ns": NOW - 4_000_000_000}
    dumps = [
        dump(rank, communicator(rank, 3, _LOOP, calls=[call] if rank != 1 else []))
        for rank in range(3)
    ]
    (finding,) = analyse(dumps).findings
    assert finding.text == "ranks 0, 2 are in ncclCommSplit for 4.0 s; rank 1 is not"


def test_failures_and_names_are_in_the_text() -> None:
    text = _report(_LOOP, _LOOP, name="tensor parallel", failure="it broke").text()
    assert f"communicator 'tensor parallel' {'a' * 16} of 2 ranks" in text
    assert "rank 1 has failed: it broke" in text


def test_ranks_that_joined_belong_to_the_communicator() -> None:
    waits = [record("all_reduce", "issued", age=1)]
    dumps = [
        dump(0, communicator(0, 3, waits, id="c" * 16, joined="d" * 16)),
        dump(1, communicator(1, 3, waits, id="c" * 16)),
        dump(2, communicator(2, 3, [], id="d" * 16)),
    ]
    (finding,) = analyse(dumps).findings
    assert finding.ranks == [2]


def test_several_ranks_in_one_process() -> None:
    waits = [record("all_reduce", "issued", age=1)]
    (finding,) = analyse([dump(None, communicator(0, 2, waits), communicator(1, 2, []))]).findings
    assert finding.ranks == [1]


def test_ranks_of_processes_are_named() -> None:
    text = analyse([dump(4, communicator(0, 2, [])), dump(7, communicator(1, 2, []))]).text()
    assert "its ranks: 0 in process 4, 1 in process 7" in text


def test_many_ranks_are_compared_in_time() -> None:
    """The time grows with the number of records, not with the number of pairs of ranks."""
    nranks = 1200
    first = dump(0, communicator(0, nranks, [record("all_reduce")] * 400))
    dumps = [
        replace(first, communicators=[replace(first.communicators[0], rank=rank)])
        for rank in range(nranks)
    ]
    began = time.process_time()
    assert not analyse(dumps).findings
    assert time.process_time() - began < 5


def test_files_that_do_not_belong_together_are_rejected() -> None:
    with pytest.raises(DumpError, match=r"rank 0 of communicator a+ is also in flight_0"):
        analyse([dump(0, communicator(0, 2, [])), dump(1, communicator(0, 2, []))])
    with pytest.raises(DumpError, match=r"flight_1: rank 1 of 3 .* which has 2 ranks"):
        analyse([dump(0, communicator(0, 2, [])), dump(1, communicator(1, 3, []))])


def test_dumps_without_communicators() -> None:
    assert analyse([dump(0)]).text() == "there is no communicator in these files"
