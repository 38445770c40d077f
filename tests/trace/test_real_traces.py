"""Proves on traces of real programs that correct ones have no conflicts, that a missing wait is
found, and that the merged trace of 4 ranks conforms to the schema and the definitions.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

import numpy as np
import pytest

from pynccl import nccl
from pynccl.tools.trace import chrome
from pynccl.tools.trace.exposure import RANGES, exposed
from pynccl.tools.trace.merge import merge
from pynccl.tools.trace.model import ProcessTrace
from pynccl.tools.trace.order import check
from tests.nccl import test_delays
from tests.support.blocking import when_blocked
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.tier import FULL
from tests.trace.test_chrome_events import check_schema

_SEEDS = 20 if FULL else 8


@on_ranks(2, ids=test_delays.COMMUNICATORS)
def test_correct_programs_have_no_conflicts(rank: Rank) -> None:
    comms = [rank.communicator(i) for i in range(test_delays.COMMUNICATORS)]
    found = {}
    for seed in range(1, _SEEDS + 1):
        with test_delays.delays(rank, seed):
            program = test_delays.Program(rank, comms, seed)
            with nccl.trace() as trace:
                program.run()
        assert trace.process.operations
        found[seed] = check(trace.process)
    for comm in comms:
        comm.close()
    assert not any(found.values()), found


def _race(rank: Rank, waits: bool, grouped: bool = False) -> list[tuple[int, int]]:
    """The numbers of detected races and possible races, by seed.

    With a group, the second operation is called before the wait and issued after it.
    """
    first, second = (rank.communicator(i) for i in range(2))
    found = []
    for seed in range(1, _SEEDS + 1):
        with test_delays.delays(rank, seed):
            a, b, event = rank.stream(), rank.stream(), rank.event()
            x, y = (rank.memory.put(np.ones(1000)) for _ in range(2))
            with nccl.trace() as trace:
                for _ in range(5):
                    first.all_reduce(x, stream=a)
                with nccl.group() if grouped else contextlib.nullcontext():
                    if grouped:
                        second.all_reduce(x, out=y, stream=b)
                    if waits:
                        event.record(a)
                        b.wait(event)
                    if not grouped:
                        second.all_reduce(x, out=y, stream=b)
                a.synchronize()
                b.synchronize()
        conflicts = check(trace.process)
        errors = sum(one.times for one in conflicts if one.error)
        found.append((errors, sum(one.times for one in conflicts) - errors))
    first.close()
    second.close()
    return found


@pytest.mark.parametrize("grouped", [False, True])
def test_waits_prevent_races(launch: Launcher, grouped: bool) -> None:
    for result in launch(2, _race, True, grouped, ids=2):
        assert result == [(0, 0)] * _SEEDS


def test_a_dropped_wait_is_found(launch: Launcher) -> None:
    for result in launch(2, _race, False, ids=2):
        assert all(errors + possible > 0 for errors, possible in result)
        assert sum(errors > 0 for errors, _ in result) > _SEEDS // 2


def _step(rank: Rank, folder: str) -> None:
    """Steps of data parallel training: ranges, works, messages, and one slow rank."""
    comm, memory = rank.comm, rank.memory
    stream = rank.stream()
    buckets = [memory.put(np.ones(1 << 16, np.float32)) for _ in range(3)]
    loss = memory.put(np.ones(1, np.float32))
    with nccl.trace(f"{folder}/step.json"):
        for step in range(3):
            with nccl.range("backward", compute=True):
                for bucket in buckets:
                    comm.all_reduce(bucket, nccl.MAX, stream=stream)
                    time.sleep(0.002)
            stream.synchronize()
            if rank.rank == 2:
                rank.wait_event(f"{step} waits", 0, 1, 3)
            else:
                when_blocked(partial(rank.set_event, f"{step} waits"))
            comm.all_reduce(loss, nccl.MAX)
            with nccl.group():
                comm.send(buckets[0], (rank.rank + 1) % rank.nranks, stream=stream)
                comm.recv(buckets[1], (rank.rank - 1) % rank.nranks, stream=stream)
            stream.synchronize()


@pytest.fixture(scope="module")
def traces(launch: Launcher, tmp_path_factory: pytest.TempPathFactory) -> list[ProcessTrace]:
    """The traces of the step, on 4 ranks."""
    folder = tmp_path_factory.mktemp("traces")
    launch(4, _step, str(folder))
    return [trace for path in folder.iterdir() for trace in chrome.load(path)]


def test_the_trace_of_4_ranks(traces: list[ProcessTrace]) -> None:
    check_schema(chrome.document(traces))
    merged = merge(traces)
    assert [trace.rank for trace in merged.traces] == [0, 1, 2, 3]
    assert {clock.method for clock in merged.clocks} == {"same"}
    # 4 collectives and 4 messages in each of 3 steps.
    assert sorted(len(match.members) for match in merged.matches) == [2] * 12 + [4] * 12
    for match in merged.matches:
        if not match.is_message:
            last = max(merged.began(member) or 0 for member in match.members)
            assert min(merged.ended(member) or 0 for member in match.members) >= last - 1000
    for position, trace in enumerate(merged.traces):
        assert check(trace) == []
        result = exposed(trace)
        assert result.definition == RANGES
        for operation, nanoseconds in zip(trace.operations, result.operations, strict=True):
            assert nanoseconds is not None
            if operation.count == 1 and position != 2:
                assert nanoseconds == operation.ended - operation.began
                assert merged.waited[position, trace.operations.index(operation)].rank == 2
