"""Proves the rows, times, arguments and arrows of viewers, by a schema."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pynccl.tools.trace import chrome
from pynccl.tools.trace.model import ProcessTrace
from tests.support.tier import FULL
from tests.support.traces import MS, STREAM, TraceBuilder

_NEEDS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "B": {"name", "cat", "ts", "pid", "tid", "args"},
    "i": {"name", "cat", "ts", "s", "pid", "tid", "args"},
}
_FLOW = {"bind_id", "flow_in", "flow_out"}


def check_schema(document: dict[str, Any]) -> None:
    """The rules of Chrome's trace JSON that we rely on, and the viewers' rules for slices."""
    document = json.loads(json.dumps(document, allow_nan=False))
    last = float("-inf")
    rows: dict[tuple[int, int], list[float]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    flows: dict[str, list[str]] = defaultdict(list)
    for event in document["traceEvents"]:
        needs = _NEEDS[event["ph"]]
        assert needs | {"ph"} <= set(event) <= needs | {"ph"} | _FLOW, event
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            continue
        assert (event["pid"], event["tid"]) in named
        assert event["ts"] >= max(last, 0)
        assert round(event["ts"] * 1000) / 1000 == event["ts"], "not whole nanoseconds"
        last = event["ts"]
        if "bind_id" in event:
            flows[event["bind_id"]].append(f"{'flow_in' in event:d}{'flow_out' in event:d}")
        open_ = rows[event["pid"], event["tid"]]
        while open_ and open_[-1] <= event["ts"] + 1e-4:  # except for the last bit of the floats
            open_.pop()
        if event["ph"] != "i":
            end = event["ts"] + event["dur"] if event["ph"] == "X" else float("inf")
            # Slices of a row contain each other or do not overlap.
            assert not open_ or end <= open_[-1] + 1e-4, event
            open_.append(end)
    for ends in flows.values():
        assert ends == ["01", *["11"] * (len(ends) - 2), "10"]


def _events(traces: ProcessTrace | Sequence[ProcessTrace], category: str) -> list[dict[str, Any]]:
    document = chrome.document(traces)
    check_schema(document)
    return [event for event in document["traceEvents"] if event.get("cat") == category]


def _program(rank: int) -> TraceBuilder:
    """A sample of all features, on 4 ranks."""
    builder = TraceBuilder(rank, 4)
    builder.range("forward", 0, 5, compute=True)
    builder.range("on a stream", 0.5, 7, stream=STREAM)
    builder.operation("all_reduce", 1 + rank, 6.123456, nbytes=1 << 20, called=0.7)
    builder.operation("all_reduce", 7.5, 8, stream=0)
    for _ in range(3):
        builder.operation("send", 9 + rank / 10, 10, peer=(rank + 1) % 4, group=1, called=9)
        builder.operation("recv", 9 + rank / 10, 10, peer=(rank - 1) % 4, group=1, called=9)
    builder.wait("work", 5, 6.2, communicator="a" * 16, sequence=1)
    builder.operation("broadcast", None, None, called=10.5, graph=1)
    builder.launch(1, 11, 12)
    builder.operation("all_reduce", 20 + rank, None)
    builder.operation("all_reduce", None, None, called=31)
    builder.operation("all_reduce", None, None, called=32, failed=True)
    return builder


def test_rows_and_processes() -> None:
    traces = [_program(rank).trace for rank in range(4)]
    document = chrome.document(traces)
    check_schema(document)
    metadata = [event for event in document["traceEvents"] if event["ph"] == "M"]
    names = {e["pid"]: e["args"]["name"] for e in metadata if e["name"] == "process_name"}
    assert names == {rank: f"rank {rank} (pid {1000 + rank} on host)" for rank in range(4)}
    rows = [e["args"]["name"] for e in metadata if e["name"] == "thread_name" and e["pid"] == 2]
    assert rows == ["stream 1 (0x7f0000001000)", "default stream of main thread", "main thread"]
    assert document["pynccl"]["base_ns"] == traces[0].began


def test_the_pid_of_one_process_is_its_own_and_without_ranks_they_are_unique() -> None:
    assert {event["pid"] for event in _events(_program(2).trace, "operation")} == {1002}
    traces = [_program(rank).trace for rank in range(2)]
    traces[0].rank = None
    assert {event["pid"] for event in _events(traces, "operation")} == {0, 1}


def test_an_operation_has_all_its_fields() -> None:
    (first, *_) = _events(_program(0).trace, "operation")
    assert (first["ph"], first["ts"], first["dur"]) == ("X", 1000, 5123.456)
    args = first["args"]
    assert args["stream"] == "0x7f0000001000"
    assert args["sendbuff"] == "0x10000"
    assert (args["count"], args["dtype"]) == (1 << 18, "float32")
    assert (args["op"], args["sequence"]) == ("sum", 1)
    assert args["bytes"] == 1 << 20
    assert args["algbw"] == pytest.approx((1 << 20) / 5.123456e6)
    assert args["busbw"] == pytest.approx(1.5 * args["algbw"])


def test_incomplete_operations_are_shown() -> None:
    trace = _program(0).trace
    running, *_, waiting = _events(trace, "operation")[-2:]
    assert (running["ph"], running["ts"], running["name"]) == ("B", 20_000, "all_reduce")
    assert (waiting["ph"], waiting["ts"]) == ("i", 31_000)
    assert waiting["name"] == "all_reduce (not started)"
    calls = [event["name"] for event in _events(trace, "call")]
    assert "call broadcast (captured)" in calls
    assert "call all_reduce (failed)" in calls
    builder = TraceBuilder()
    builder.operation("all_reduce", None, None, called=1)
    builder.trace.operations = [replace(one, returned=None) for one in builder.trace.operations]
    (call,) = _events(builder.trace, "call")
    assert call["ph"] == "B"


def test_waits_between_ranks_are_in_the_arguments() -> None:
    events = _events([_program(rank).trace for rank in range(4)], "operation")
    first = {e["pid"]: e["args"] for e in events if e["args"]["sequence"] == 1}
    assert [first[rank].get("waited_for") for rank in range(4)] == [3, 3, 3, None]
    assert [first[rank].get("waited_us") for rank in range(4)] == [3000, 2000, 1000, None]


def test_a_time_far_from_the_base_is_exact() -> None:
    builder = TraceBuilder()
    day = 86_400_000
    builder.operation("all_reduce", day + 0.000001, day + 0.000004)
    (event,) = _events(builder.trace, "operation")
    assert round(event["ts"] * 1000) == day * MS + 1
    assert event["dur"] == 0.003


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50),
            st.none() | st.integers(0, 20),
            st.sampled_from([0, STREAM, STREAM + 1]),
            st.sampled_from(["operation", "wait", "range", "launch"]),
        ),
        max_size=12,
    )
)
@settings(max_examples=200 if FULL else 50)
def test_any_times_keep_the_schema(records: list[tuple[int, int | None, int, str]]) -> None:
    """Overlapping slices, which viewers cannot show in one row, get separate rows."""
    builder = TraceBuilder()
    for began, duration, stream, record in records:
        ended = None if duration is None else began + duration
        if record == "operation":
            builder.operation("all_reduce", began, ended, stream=stream, returned=began + 7)
        elif record == "wait":
            builder.wait("stream_event", began, ended, stream=stream)
        elif record == "range":
            builder.range("range", began, ended, stream=stream or None)
        else:
            builder.launch(1, began, ended, stream=stream)
    check_schema(chrome.document(builder.trace))
