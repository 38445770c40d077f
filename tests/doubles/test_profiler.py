"""The algorithm, protocol and channels of traced operations, with the double."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_ON = {"PYNCCL_EXPLAIN": "1"}


def _traced(rank: Rank) -> list[tuple[Any, ...]]:
    comm, memory = rank.comm, rank.memory
    small, received, gathered, large = (
        memory.put(np.ones(count, np.float32)) for count in (64, 64, 128, 1 << 20)
    )
    comm.all_reduce(small)  # before the trace
    with nccl.trace() as trace:
        for buffer in (small, large, small):
            comm.all_reduce(buffer)
        with nccl.group():
            comm.broadcast(large, 0)
            comm.all_gather(small, out=gathered)
        with nccl.group():
            comm.send(small, 1 - rank.rank)
            comm.recv(received, 1 - rank.rank)
    comm.all_reduce(small)
    assert trace.process is not None
    return [
        (one.kind, one.count, one.algorithm, one.protocol, one.channels)
        for one in trace.process.operations
    ]


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_trace_has_algorithms_and_channels(launch: Launcher, number: int) -> None:
    env = {**_ON, "NCCL_DOUBLE_PLUGIN_VERSION": str(number)}
    found = launch(2, _traced, provider="cuda", env=env, fresh=True)[0]
    channels = 2 if number >= 4 else None  # of messages
    assert found == [
        ("all_reduce", 64, "Ring", "LL", 1),
        ("all_reduce", 1 << 20, "Ring", "Simple", 16),
        ("all_reduce", 64, "Ring", "LL", 1),
        ("broadcast", 1 << 20, "Ring", "Simple", 16),
        ("all_gather", 64, "Ring", "LL", 1),
        ("send", 64, None, None, channels),
        ("recv", 64, None, None, channels),
    ]


def test_trace_without_the_plugin(launch: Launcher) -> None:
    found = launch(2, _traced, provider="cuda", fresh=True)[0]
    assert {one[2:] for one in found} == {(None, None, None)}


def _events_outside_of_traces(rank: Rank) -> int:
    from pynccl._internal import plugin

    buffer = rank.memory.put(np.ones(64, np.float32))
    rank.comm.all_reduce(buffer)
    before = plugin.start_profile()
    rank.comm.all_reduce(buffer)
    rank.memory.get(buffer)
    assert before == 0
    assert len(plugin.stop_profile(before)) == 1
    rank.comm.all_reduce(buffer)
    rank.memory.get(buffer)
    return len(plugin.stop_profile(before))


def test_profiler_is_off_outside_of_traces(launch: Launcher) -> None:
    assert launch(2, _events_outside_of_traces, provider="cuda", env=_ON, fresh=True) == [1, 1]


def test_trace_file_has_algorithms(launch: Launcher, tmp_path: Path) -> None:
    path = str(tmp_path / "step.json")
    file = launch(2, _all_reduce_once, path, provider="cuda", env=_ON, fresh=True)[0]
    events = json.loads(Path(file).read_text())["traceEvents"]
    (ran,) = [one for one in events if one.get("cat") == "operation"]
    assert ran["name"] == "all_reduce"
    assert ran["args"]["algorithm"] == "Ring"
    assert ran["args"]["protocol"] == "LL"
    assert ran["args"]["channels"] == 1


def _all_reduce_once(rank: Rank, path: str) -> str | None:
    buffer = rank.memory.put(np.ones(64, np.float32))
    rank.comm.async_error()  # creates the communicator
    with nccl.trace(path) as trace:
        rank.comm.all_reduce(buffer)
    return trace.path
