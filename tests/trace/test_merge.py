"""Proves how operations match, clock offsets are recovered, and waits between ranks are found."""

from __future__ import annotations

import dataclasses
import random

import pytest

from pynccl.tools.trace.merge import Merged, merge
from pynccl.tools.trace.model import TraceError
from tests.support.traces import MS, TraceBuilder


def _waits(merged: Merged) -> dict[tuple[int, int], tuple[int, float]]:
    """By trace and operation: the rank that it waited for, and the milliseconds."""
    return {key: (one.rank, one.nanoseconds / MS) for key, one in merged.waited.items()}


def test_collectives_match_by_number_and_messages_by_their_ends() -> None:
    traces = []
    for rank in range(3):
        builder = TraceBuilder(rank, 3)
        builder.operation("all_reduce", 1, 2)
        builder.operation("send", 3, 4, peer=(rank + 1) % 3)
        builder.operation("recv", 3, 4, peer=(rank - 1) % 3)
        builder.operation("broadcast", 5, 6)
        traces.append(builder.trace)
    merged = merge(traces)
    found = sorted(
        (match.kind, match.number, [member.rank for member in match.members])
        for match in merged.matches
    )
    assert found == [
        ("all_reduce", 1, [0, 1, 2]),
        ("broadcast", 2, [0, 1, 2]),
        ("send", 1, [0, 1]),
        ("send", 1, [1, 2]),
        ("send", 1, [2, 0]),
    ]
    assert merged.different == []


def test_communicators_and_captures_are_distinguished() -> None:
    traces = []
    for rank in range(2):
        builder = TraceBuilder(rank, 2)
        builder.communicator("b" * 16)
        builder.operation("all_reduce", 1, 2, communicator="b" * 16)
        builder.operation("all_reduce", None, None, graph=1)
        traces.append(builder.trace)
    (match,) = merge(traces).matches
    assert match.communicator == "b" * 16


def test_a_grown_communicator() -> None:
    old, new = TraceBuilder(0, 2), TraceBuilder(1, 2)
    old.communicator("c" * 16, joined="d" * 16)
    new.communicator("d" * 16)
    old.operation("all_reduce", 1, 2, communicator="c" * 16)
    new.operation("all_reduce", 1, 2, communicator="d" * 16)
    (match,) = merge([old.trace, new.trace]).matches
    assert [member.rank for member in match.members] == [0, 1]


def test_different_calls_of_one_number_are_reported() -> None:
    traces = []
    for rank, kind in enumerate(("all_reduce", "broadcast")):
        builder = TraceBuilder(rank, 2)
        builder.operation(kind, 1, 2)
        traces.append(builder.trace)
    merged = merge(traces)
    assert merged.matches == []
    assert merged.different == [
        f"communicator {'a' * 16}: #1 is all_reduce on rank 0, broadcast on rank 1"
    ]


def test_the_same_rank_twice_is_an_error() -> None:
    with pytest.raises(TraceError, match=r"rank 0 of communicator a+ is in two traces"):
        merge([TraceBuilder(0).trace, TraceBuilder(0).trace])


def test_which_rank_waits_for_which() -> None:
    traces = []
    for rank in range(3):
        builder = TraceBuilder(rank, 3)
        builder.operation("all_reduce", 1 + rank, 5)
        builder.operation("broadcast", 10 - rank, 12, root=0)  # the others wait for the root
        builder.operation("broadcast", 20 + rank, 25, root=0)  # and the root for no rank
        builder.operation("reduce", 30 + rank, 35, root=0)  # the root waits for the last one
        builder.operation("all_gather", 40 + rank, 40.5 + rank)  # it ended before the last began
        traces.append(builder.trace)
    assert _waits(merge(traces)) == {
        (0, 0): (2, 2.0),
        (1, 0): (2, 1.0),
        (1, 1): (0, 1.0),
        (2, 1): (0, 2.0),
        (0, 3): (2, 2.0),
        (0, 4): (2, 0.5),
        (1, 4): (2, 0.5),
    }


def test_a_receiver_waits_for_its_sender() -> None:
    sender, receiver = TraceBuilder(0), TraceBuilder(1)
    sender.operation("send", 5, 6, peer=1)
    receiver.operation("recv", 2, 6, peer=0)
    sender.operation("send", 7, 10, peer=1)
    receiver.operation("recv", 9, 10, peer=0)
    assert _waits(merge([receiver.trace, sender.trace])) == {(1, 0): (0, 3.0)}


def _shifted(shifts: list[int], *, seed: int = 1) -> list[TraceBuilder]:
    """100 all_reduces of a few milliseconds on machines whose clocks differ by nanoseconds."""
    randoms = random.Random(seed)
    builders = [
        TraceBuilder(rank, len(shifts), boot=f"machine {shift}", shift=shift)
        for rank, shift in enumerate(shifts)
    ]
    at = 0.0
    for _ in range(100):
        begins = [at + randoms.random() * 3 for _ in shifts]
        end = max(begins) + 1
        for builder, begin in zip(builders, begins, strict=True):
            jitter = randoms.random() * 0.01
            builder.operation("all_reduce", begin, end + jitter)
        at = end + 1
    return builders


@pytest.mark.parametrize("seed", range(3))
def test_shifted_clocks_are_found(seed: int) -> None:
    shifts = [0, 123_456_789, -98_765_432_100]
    merged = merge([builder.trace for builder in _shifted(shifts, seed=seed)])
    for clock, shift in zip(merged.clocks[1:], shifts[1:], strict=True):
        assert clock.method == "operations"
        assert clock.operations == 100
        assert abs(clock.offset + shift) < 10_000  # a hundredth of the shortest operation
    for match in merged.matches:
        last = max(merged.began(member) or 0 for member in match.members)
        assert min(merged.ended(member) or 0 for member in match.members) >= last


def test_one_machine_has_one_clock() -> None:
    builders = _shifted([0, 50 * MS, 50 * MS])
    merged = merge([builder.trace for builder in builders])
    assert merged.clocks[1] == merged.clocks[2]
    same = [dataclasses.replace(builder.trace, boot="one") for builder in builders]
    assert [(one.offset, one.method) for one in merge(same).clocks] == [(0, "same")] * 3


def test_a_collective_counts_once_for_two_machines() -> None:
    builders = _shifted([0, 0, 0, 50 * MS, 50 * MS, 50 * MS])
    for builder in (builders[1], builders[4]):
        operations = builder.trace.operations
        operations[7] = dataclasses.replace(operations[7], ended=None)
    clock = merge([builder.trace for builder in builders]).clocks[-1]
    assert clock.operations == 100
    assert abs(clock.offset + 50 * MS) < 10_000


def test_outliers_do_not_move_the_clock() -> None:
    builders = _shifted([0, 70 * MS])
    for builder in builders:
        operations = builder.trace.operations
        for index in range(0, 100, 5):  # a fifth ends late on one rank
            if builder.rank == index % 2:
                late = operations[index].ended + MS
                operations[index] = dataclasses.replace(operations[index], ended=late)
    merged = merge([builder.trace for builder in builders])
    assert abs(merged.clocks[1].offset + 70 * MS) < 10_000


def test_without_common_operations_wall_clocks_are_used() -> None:
    builders = [TraceBuilder(rank, 2, boot=f"{rank}", shift=rank * 77) for rank in range(2)]
    clock = merge([builder.trace for builder in builders]).clocks[1]
    assert (clock.method, clock.offset) == ("epoch", -77)
