"""Proves that mismatched recordings are reported with rank and number, and never hang."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import pytest

from pynccl.flight.analysis import Finding
from pynccl.tools.replay import replay
from pynccl.tools.replay.check import check
from pynccl.tools.replay.recorded import gather
from tests.support.recordings import World, generated

pytestmark = pytest.mark.usefixtures("kept_ranks")


def _findings(world: World, ranks: int | None = None) -> list[Finding]:
    return check(gather(world.traces, ranks))


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "all_to_all", "send", "recv"])
def test_a_missing_operation(kind: str) -> None:
    world = generated(random.Random(5), 4, 300)
    operations = world.traces[2].operations
    index = next(n for n in range(150, 300) if operations[n].kind == kind)
    gone = world.remove(2, index)
    findings = _findings(world)
    assert findings
    rank = world.members[gone.communicator].index(2)
    ours = [one for one in findings if one.communicator == gone.communicator]
    assert any(rank in one.ranks and one.number == gone.number for one in ours), findings
    assert f"communicator {gone.communicator}" in ours[0].text
    assert f"#{gone.number}" in ours[0].text
    result = replay(world.traces)
    assert (result.findings, result.rows, result.ok) == (findings, [], False)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("all_reduce", "dtype", "int32"),
        ("all_reduce", "count", 9),
        ("all_reduce", "op", "max"),
        ("broadcast", "root", 2),
        ("all_gather", "count", 7),
    ],
)
def test_an_operation_that_differs(kind: str, field: str, value: object) -> None:
    world = World(3)
    for _ in range(4):
        world.all(kind)
    operations = world.traces[1].operations
    changed: dict[str, Any] = {field: value}
    operations[2] = dataclasses.replace(operations[2], **changed)
    (finding,) = _findings(world)
    assert (finding.ranks, finding.number) == ([1], 3)
    assert "rank 1 called" in finding.text


def test_a_message_of_another_size() -> None:
    world = World(2)
    for count in (4, 5):
        world.call(0, "send", peer=1, count=4)
        world.call(1, "recv", peer=0, count=count)
    (finding,) = _findings(world)
    assert finding.number == 2
    assert "its receive (float32, count=5)" in finding.text


def test_processes_are_named_if_their_ranks_differ() -> None:
    world = World(3)
    world.all("all_reduce", world.communicator("b", [2, 0]))
    world.traces[0].operations.pop()
    (finding,) = _findings(world)
    assert "whose ranks are the processes 2, 0: rank 1 has not issued #1 all_reduce" in finding.text


@pytest.mark.parametrize("stream", [0, 7])
def test_a_hang_that_the_check_does_not_find(stream: int) -> None:
    """Two ranks use two communicators in different orders; the error names the operation."""
    world = World(2)
    comms = ["0", world.communicator("b", [0, 1])]
    for process, order in enumerate((comms, comms[::-1])):
        for comm in order:
            world.call(process, "all_reduce", comm, stream=stream)
    began = time.monotonic()
    result = replay(world.traces, timeout=3)
    assert time.monotonic() - began < 60
    assert not result.ok
    assert not result.findings
    assert result.failures
    for text in result.failures.values():
        assert "all_reduce #1" in text or "ncclAllReduce(count=8" in text
