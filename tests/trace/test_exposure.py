"""Proves exposed times and tables, against values computed by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pynccl import cli
from pynccl.tools.trace import chrome
from pynccl.tools.trace.bandwidth import bandwidth, operation_bandwidths
from pynccl.tools.trace.exposure import RANGES, WAITS, exposed
from pynccl.tools.trace.merge import merge
from pynccl.tools.trace.shape import total
from pynccl.tools.trace.summary import summarise
from tests.support.traces import MS, STREAM, TraceBuilder

_OTHER = STREAM + 0x100
_FIRST = {"communicator": "a" * 16, "sequence": 1}


def _ms(values: list[int | None]) -> list[float | None]:
    return [None if value is None else value / MS for value in values]


# --- with ranges of compute


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(0, 20)], 0),  # hidden
        ([(0, 5)], 10),  # not at all: it runs from 5 to 15
        ([(0, 10)], 5),  # half of it
        ([(6, 8), (7, 9), (9, 10), (14, 99)], 5),
        ([(15, 20)], 10),
        ([(12, None)], 7),  # a range still open at the end
    ],
)
def test_communication_outside_of_compute_ranges_is_exposed(
    ranges: list[tuple[float, float | None]], expected: float
) -> None:
    builder = TraceBuilder()
    for began, ended in ranges:
        builder.range("compute", began, ended, compute=True)
    builder.range("no compute", 0, 100)
    builder.operation("all_reduce", 5, 15)
    builder.wait("work", 14, 15, **_FIRST)  # does not count here
    result = exposed(builder.trace)
    assert result.definition == RANGES
    assert _ms(result.operations) == [expected]
    assert result.total == expected * MS
    assert result.communication == 10 * MS


def test_ranges_of_all_threads_and_streams_count_together() -> None:
    builder = TraceBuilder()
    builder.range("forward", 0, 4, compute=True)
    builder.range("kernels", 6, 8, compute=True, stream=_OTHER)
    builder.range("backward", 7, 9, compute=True, thread=7)
    builder.operation("all_reduce", 2, 12)
    builder.operation("all_gather", 8, 12, stream=_OTHER)
    result = exposed(builder.trace)
    assert _ms(result.operations) == [5.0, 3.0]
    assert result.total == 5 * MS  # both were exposed from 9 to 12
    assert result.communication == 10 * MS
    assert result.compute == 7 * MS


# --- without


def test_operations_on_the_threads_own_stream_are_exposed() -> None:
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 3, stream=0)
    builder.operation("all_reduce", 4, 9)  # not waited for
    result = exposed(builder.trace)
    assert result.definition == WAITS
    assert _ms(result.operations) == [2.0, 0.0]
    assert result.total == 2 * MS
    cuda = TraceBuilder(provider="cuda")
    cuda.operation("all_reduce", 1, 3, stream=0)
    assert exposed(cuda.trace).total == 0


def test_a_thread_that_runs_operations_for_others_does_not_wait() -> None:
    """Torch's backend runs asynchronous operations on CPUs this way."""
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 5, stream=0, thread=7)
    builder.operation("all_reduce", 6, 9, stream=0, thread=7)
    builder.operation("all_reduce", 12, 14, stream=0)
    builder.wait("work", 4, 5, **_FIRST)
    result = exposed(builder.trace)
    assert _ms(result.operations) == [1.0, 0.0, 2.0]


def test_waits_for_an_operation_are_its_exposed_time() -> None:
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 10)
    builder.operation("all_reduce", 10, 12)
    builder.wait("work", 7, 10, **_FIRST)
    builder.wait("work", 9, 10, thread=7, **_FIRST)  # two threads wait at the same time
    result = exposed(builder.trace)
    assert _ms(result.operations) == [3.0, 0.0]
    assert result.total == 3 * MS


def test_a_wait_for_a_stream_counts_for_its_operations() -> None:
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 5)
    builder.operation("all_reduce", 5, 9)
    builder.operation("all_gather", 1, 9, stream=_OTHER)
    builder.wait("stream", 3, 9.5, stream=STREAM)
    builder.wait("stream", 20, 25, stream=0x1234)  # of compute
    result = exposed(builder.trace)
    assert _ms(result.operations) == [2.0, 4.0, 0.0]
    assert result.total == 6 * MS


def test_streams_of_compute_wait_and_those_of_communication_do_not_count() -> None:
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 5)
    builder.wait("stream_event", 3, 5, stream=_OTHER)
    builder.wait("stream_event", 0, 1, stream=STREAM)
    builder.wait("stream_event", 4, 6, stream=STREAM, **_FIRST)
    result = exposed(builder.trace)
    assert _ms(result.operations) == [2.0]
    assert result.total == 3 * MS


def test_a_wait_for_an_unknown_target_counts_in_the_total() -> None:
    builder = TraceBuilder()
    builder.operation("all_reduce", 1, 5)
    builder.wait("event", 2, 4)
    result = exposed(builder.trace)
    assert (_ms(result.operations), result.total) == ([0.0], 2 * MS)


def test_incomplete_operations_last_until_the_end_of_the_trace() -> None:
    builder = TraceBuilder(ended=10**13 + 30 * MS)
    builder.operation("all_reduce", 10, None, stream=0)
    builder.operation("all_reduce", None, None)
    builder.operation("all_reduce", 1, 2, graph=1)
    assert _ms(exposed(builder.trace).operations) == [20.0, None, None]


# --- bandwidths and tables


def test_sizes_are_those_of_nccl_tests() -> None:
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "gather", "scatter", "reduce", "signal")
    assert [total(kind, 4, 2, "float32") for kind in kinds] == [8, 32, 32, 32, 32, 8, 0]


@pytest.mark.parametrize(
    ("seconds", "nranks", "text"),
    [(1.0, 0, "nranks: 0 is below 1"), (0.0, 2, r"seconds: 0\.0 is not above 0")],
)
def test_bandwidths_of_wrong_numbers(seconds: float, nranks: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        bandwidth("all_reduce", 8, seconds, nranks)


def test_the_operations_of_a_group_share_its_time() -> None:
    builder = TraceBuilder(0, 4)
    for peer in (1, 2, 3):
        builder.operation("send", 1, 2, nbytes=1_000_000, peer=peer, group=1)
        builder.operation("recv", 1, 2, nbytes=1_000_000, peer=peer, group=1)
    builder.operation("all_reduce", 3, 4, nbytes=1_000_000)
    builder.operation("barrier", 5, 6, nbytes=0)
    speeds = operation_bandwidths(builder.trace)
    assert [speed and (speed.algbw, speed.busbw) for speed in speeds] == [
        *[(pytest.approx(3), pytest.approx(3))] * 6,
        (pytest.approx(1), pytest.approx(1.5)),
        None,
    ]
    rows = {row.kind: row for row in summarise(merge([builder.trace])).rows}
    assert (rows["send"].calls, rows["send"].total) == (3, MS)  # the group counts once
    assert rows["send"].busbw == pytest.approx(3)


def test_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for rank in range(2):
        builder = TraceBuilder(rank, 2, ended=10**13 + 100 * MS)
        builder.range("forward", 0, 3, compute=True)
        builder.operation("all_reduce", 1 + rank, 5, nbytes=1 << 20)
        builder.operation("all_reduce", 6, 7, nbytes=1 << 20)
        builder.operation("all_reduce", 8, 9, nbytes=4)
        builder.operation("all_gather", 10, None)
        builder.trace.dropped = 3 * rank
        paths.append(str(tmp_path / f"{rank}.json"))
        chrome.save(builder.trace, paths[-1])
    assert cli.main(["trace", "show", *reversed(paths)]) == 0
    text = capsys.readouterr().out
    lines = [re.sub(r"\s{2,}", " | ", line) for line in text.splitlines()]
    assert lines[1].startswith("all_reduce | 4 B | 2 | 2.00 ms | ")
    assert lines[2] == (
        "all_reduce | 1 MiB | 4 | 9.00 ms | 2.00 ms | 1.00 ms | 4.00 ms | 0.699 | 6.00 ms | 66.7 | "
        "rank 1 1.00 ms"
    )
    # Until 100, for the operation that did not end.
    assert lines[5] == (
        "rank 0 | 100.00 ms | 4 | 96.00 ms | 94.00 ms | 97.9 | 3.00 ms | 1.00 ms | 0 ns"
    )
    assert lines[6].endswith("0 ns | 1.00 ms")
    assert "exposed: the time on its stream in which no range of compute was open" in text
    assert f"rank 0: not ended: all_gather #4 of {'a' * 16}\n" in text
    assert "rank 1: 3 later operations were not recorded" in text


def test_tables_of_an_empty_trace_and_of_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "empty.json")
    chrome.save(TraceBuilder().trace, path)
    assert cli.main(["trace", "show", path]) == 0
    assert "no operation has ended" in capsys.readouterr().out
    builder = TraceBuilder(timed=False)
    for _ in range(3):
        builder.operation("all_reduce", nbytes=4)
    chrome.save(builder.trace, path)
    assert cli.main(["trace", "show", path]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[:4] == ["all_reduce", "4", "B", "3"]
    assert cli.main(["trace", "check", path]) == 2
    assert "this is a recording, which lacks the times of a trace" in capsys.readouterr().err
    (tmp_path / "recording").write_bytes(b"pynccl trace 1\nH")
    assert cli.main(["trace", "show", str(tmp_path / "recording")]) == 2
    assert "recording: " in capsys.readouterr().err


def test_merged_files_report_their_clock_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for rank in range(2):
        builder = TraceBuilder(rank, 2, boot=f"{rank}", shift=rank * 7 * MS)
        builder.operation("all_reduce", 1, 2)
        paths.append(str(tmp_path / f"{rank}.json"))
        chrome.save(builder.trace, paths[-1])
    merged = str(tmp_path / "merged.json")
    assert cli.main(["trace", "merge", "-o", merged, *paths]) == 0
    assert capsys.readouterr().out == (
        f"rank 1: its clock is -7.000000 ms, from 1 matched collectives\n{merged}\n"
    )
    assert [trace.rank for trace in chrome.load(merged)] == [0, 1]
    events = json.loads(Path(merged).read_text())["traceEvents"]
    assert [e["ts"] for e in events if e.get("cat") == "operation"] == [1000, 1000]
