"""Proves that the order check finds the operations that race, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pynccl import cli
from pynccl.tools.trace import chrome
from pynccl.tools.trace.order import Conflict, check
from tests.support.traces import MS, STREAM, TraceBuilder

_A, _B, _C = STREAM, STREAM + 0x100, STREAM + 0x200
_FIRST = {"communicator": "a" * 16, "sequence": 1}
_EVENT = {"event_stream": _A, "event_recorded": 1.1}
_CHAIN = {"sendbuff": 0x20000, "recvbuff": 0x30000}  # reads what the other two write


def _check(build: Callable[[TraceBuilder], None], **fields: Any) -> list[Conflict]:  # noqa: ANN401
    builder = TraceBuilder(**fields)
    build(builder)
    return check(builder.trace)


def _first(builder: TraceBuilder, **fields: Any) -> None:  # noqa: ANN401
    """An operation that writes 4096 bytes at 0x20000 from 1 to 5 ms, on stream A."""
    builder.operation("all_reduce", 1, 5, stream=_A, **fields)


def _second(builder: TraceBuilder, began: float = 6, **fields: Any) -> None:  # noqa: ANN401
    """An operation that reads them on stream B, for 2 ms."""
    builder.operation("all_reduce", began, began + 2, **{"stream": _B, **_CHAIN, **fields})


def test_a_read_during_the_write_of_another_stream_is_a_race() -> None:
    builder = TraceBuilder()
    _first(builder)
    _second(builder, 4, called=1.5)
    (found,) = check(builder.trace)
    assert (found.error, found.overlap, found.times) == (True, MS, 1)
    assert (found.address, found.nbytes) == (0x20000, 4096)
    assert (found.first.writes, found.second.writes) == (True, False)
    assert found.text() == (
        f"race: all_reduce (operation 2 of {'a' * 16}) on stream 2 (0x7f0000001100) reads 4096 "
        f"bytes at 0x20000 that all_reduce (operation 1 of {'a' * 16}) on stream 1 "
        "(0x7f0000001000) writes, while both ran for 1.000 ms"
    )


def test_without_an_overlap_a_race_is_possible() -> None:
    builder = TraceBuilder()
    _first(builder)
    _second(builder)
    (found,) = check(builder.trace)
    assert (found.error, found.overlap) == (False, 0)
    assert found.text().startswith("possible race: all_reduce (operation 2 of ")
    assert "with nothing that orders them" in found.text()


@pytest.mark.parametrize(
    ("fields", "conflicts"),
    [
        ({"sendbuff": 0x10000}, 0),  # both read
        ({"sendbuff": 0x20000 + 4096}, 0),  # next to it
        ({"sendbuff": 0x20000 + 4095, "sendbytes": 1}, 1),
        ({"sendbuff": 0x20000 - 1, "sendbytes": 2}, 1),
        ({"sendbuff": 0x20000, "sendbytes": 0}, 0),
        ({"sendbuff": 0x10000, "recvbuff": 0x20000}, 1),  # both write
        ({"sendbuff": 0x40000, "recvbuff": 0x10000}, 1),  # writes what the first one reads
        ({"stream": _A}, 0),
        ({"failed": True}, 0),
        ({"graph": 1}, 0),
    ],
)
def test_which_buffers_conflict(fields: dict[str, Any], conflicts: int) -> None:
    def build(builder: TraceBuilder) -> None:
        _first(builder)
        _second(builder, 4, called=1.5, **fields)

    assert len(_check(build)) == conflicts


@pytest.mark.parametrize(
    ("wait", "ordered"),
    [
        (("stream", 2, 5.1, {"stream": _A}), True),
        (("stream", 2, 5.1, {"stream": _C}), False),
        (("stream", 2, 5.1, {"stream": _A, "thread": 7}), False),  # another thread
        (("stream", 2, None, {"stream": _A}), False),
        (("stream", 0.5, 0.6, {"stream": _A}), False),  # before the first was called
        (("work", 2, 5.1, _FIRST), True),
        (("work", 2, 5.1, {"communicator": "a" * 16, "sequence": 7}), False),  # not in the trace
        (("event", 2, 5.1, {"stream": _A}), False),  # recorded before the trace
        (("event", 2, 5.1, {"stream": _A, **_EVENT}), True),
        (("stream_event", 5, 5.5, {"stream": _B}), False),  # recorded before the trace
        (("stream_event", 4, 4.5, {"stream": _B, **_FIRST}), True),
        (("stream_event", 4, 4.5, {"stream": _C, **_FIRST}), False),  # another stream waits
        (("stream_event", 9, 9.5, {"stream": _B, **_FIRST}), False),  # after the second
        (("work", 5, 5.5, {"stream": _B, "on_device": True, **_FIRST}), True),
    ],
)
def test_waits_order(wait: tuple[str, float, float | None, dict[str, Any]], ordered: bool) -> None:
    def build(builder: TraceBuilder) -> None:
        _first(builder)
        what, began, ended, fields = wait
        builder.wait(what, began, ended, **fields)
        _second(builder)

    assert len(_check(build)) == (0 if ordered else 1)


def test_order_is_transitive() -> None:
    """From A to C by an event, from C to the thread by a wait, from the thread to B."""

    def build(builder: TraceBuilder, *, event: bool = True) -> None:
        _first(builder)
        if event:
            builder.wait("stream_event", 5, 5.2, stream=_C, **_FIRST)
        builder.wait("stream", 5.1, 5.5, stream=_C)
        _second(builder)

    assert _check(build) == []
    assert len(_check(lambda builder: build(builder, event=False))) == 1


@pytest.mark.parametrize(
    ("recorded", "called", "stream", "ordered"),
    [
        (1.1, 1.2, _A, True),
        (0.5, 1.2, _A, False),  # before the first was called
        (1.1, 1.2, _C, False),  # on another stream
        (1.1, 6.5, _A, False),  # the wait was called after the second
    ],
)
def test_an_event_follows_the_work_on_its_stream(
    recorded: float, called: float, stream: int, ordered: bool
) -> None:
    def build(builder: TraceBuilder) -> None:
        _first(builder)
        event = {"event_stream": stream, "event_recorded": recorded, "called": called}
        builder.wait("stream_event", 5, 5.5, stream=_B, **event)
        _second(builder, called=1.3)

    assert len(_check(build)) == (0 if ordered else 1)


@pytest.mark.parametrize("waits", [True, False])
def test_an_event_follows_the_waits_of_its_stream(waits: bool) -> None:
    """From A to C, which has no operations, and from there to B and to the thread."""

    def build(builder: TraceBuilder) -> None:
        _first(builder)
        if waits:
            first = {"event_stream": _A, "event_recorded": 1.1, "called": 1.2}
            builder.wait("stream_event", 5, 5.1, stream=_C, **first)
        second = {"event_stream": _C, "event_recorded": 1.3}
        builder.wait("stream_event", 5.1, 5.2, stream=_B, called=1.4, **second)
        _second(builder, called=1.5)
        builder.wait("event", 1.6, 5.3, stream=_C, called=1.6, **second)
        chain = _CHAIN | {"recvbuff": 0x40000}
        builder.operation("all_gather", 9, 9.5, stream=_C + 0x100, **chain)

    assert len(_check(build)) == (0 if waits else 2)


def test_the_default_stream_of_a_thread_is_done_when_its_call_returns() -> None:
    def build(builder: TraceBuilder) -> None:
        builder.operation("all_reduce", 1, 5, stream=0, returned=5.01)
        _second(builder)

    assert _check(build) == []
    assert len(_check(build, provider="cuda")) == 1


def test_the_default_streams_of_two_threads_are_two() -> None:
    def build(builder: TraceBuilder) -> None:
        builder.operation("all_reduce", 1, 5, stream=0, returned=5.01)
        _second(builder, 4, stream=0, thread=7, returned=6.01)

    (found,) = _check(build)
    assert found.error
    assert found.second.stream == "default stream of thread 7"


def test_the_streams_of_a_group_join() -> None:
    def build(builder: TraceBuilder, group: int | None = 1) -> None:
        _first(builder)
        for stream in (_A, _B):
            elsewhere = {"sendbuff": 16 * stream, "recvbuff": 32 * stream}
            builder.operation("all_reduce", 5.5, 5.8, stream=stream, group=group, **elsewhere)
        _second(builder)

    assert _check(build) == []
    assert len(_check(lambda builder: build(builder, None))) == 1


@pytest.mark.parametrize(
    ("what", "fields", "ordered"),
    [
        ("stream_event", {"stream": _B, "called": 1.5, **_EVENT}, True),
        ("stream_event", {"stream": _B, "called": 6.9, **_EVENT}, False),  # after its end
        ("stream", {"stream": _A}, True),  # the thread
        ("stream", {"stream": _C}, False),
    ],
)
def test_a_wait_in_a_group_precedes_the_operations_of_the_group(
    what: str, fields: dict[str, Any], ordered: bool
) -> None:
    """A group is issued at its end, with operations that were called before the wait as well."""

    def build(builder: TraceBuilder) -> None:
        _first(builder)
        _second(builder, 7, group=1, called=1.4)
        builder.wait(what, 5.2, 5.3, **fields)
        elsewhere = {"sendbuff": 0x50000, "recvbuff": 0x60000}
        builder.operation("all_reduce", 7, 9, stream=_B, group=1, called=6, **elsewhere)

    assert len(_check(build)) == (0 if ordered else 1)


def test_an_event_recorded_in_a_group_precedes_the_operations_of_the_group() -> None:
    def build(builder: TraceBuilder) -> None:
        _first(builder, group=1)
        builder.operation("all_gather", 1, 5, stream=_A, group=1, called=1.2, recvbuff=0x40000)
        builder.wait("stream_event", 5.1, 5.2, stream=_B, called=1.3, **_EVENT)
        _second(builder, called=1.4)

    assert len(_check(build)) == 1


def test_a_launch_uses_what_its_graph_has_captured() -> None:
    def build(builder: TraceBuilder, **wait: Any) -> None:  # noqa: ANN401
        _second(builder, 0, graph=1)
        _first(builder)
        if wait:
            builder.wait("work", 2, 5.1, **wait)
        builder.launch(1, 4 if not wait else 6, 9, stream=_B)

    (found,) = _check(build)
    assert found.error
    assert found.second.name == "the launch of graph 1"
    assert _check(lambda builder: build(builder, communicator="a" * 16, sequence=2)) == []


def test_an_operation_that_never_ended_still_runs() -> None:
    def build(builder: TraceBuilder) -> None:
        builder.operation("all_reduce", 1, None, stream=_A)
        _second(builder)

    (found,) = _check(build)
    assert found.error


def test_equal_conflicts_of_a_loop_are_one() -> None:
    """A loop without its wait: each read races with the preceding write."""

    def build(builder: TraceBuilder) -> None:
        for step in range(5):
            at = 10 * step
            builder.operation("all_reduce", at + 1, at + 5, stream=_A)
            builder.operation("all_gather", at + 4, at + 6, stream=_B, called=at + 2, **_CHAIN)

    found = _check(build)
    assert [(one.error, one.times) for one in found] == [(True, 5), (False, 4)]


def test_many_operations_are_checked_in_time() -> None:
    """The time is linear in the number of operations: 10,000 in a second."""
    builder = TraceBuilder()
    for index in range(5_000):
        buffers = {"sendbuff": (index % 50 + 1) << 16, "recvbuff": (index % 50 + 101) << 16}
        builder.operation("all_reduce", index, index + 0.5, stream=_A, **buffers)
        builder.operation("all_reduce", index + 0.5, index + 1, stream=_B, **buffers)
    found = check(builder.trace)
    # Both streams write each of 50 buffers in turn; the first write precedes all others.
    assert (sum(one.times for one in found), len(found)) == (9_950, 100)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = TraceBuilder(0), TraceBuilder(1)
    for builder in (right, wrong):
        _first(builder)
        if builder is right:
            builder.wait("work", 2, 5.1, **_FIRST)
        _second(builder, 5.5 if builder is right else 4.5)
    paths = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    for path, builder in zip(paths, (right, wrong), strict=True):
        chrome.save(builder.trace, path)
    assert cli.main(["trace", "check", paths[0]]) == 0
    assert capsys.readouterr().out == "no conflicting uses of a buffer\n"
    assert cli.main(["trace", "check", *paths]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("rank 1: race: all_reduce (operation 2")
