"""The algorithm, protocol and channels of traced operations, with the double."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl
from pynccl.tools.trace import chrome
from tests.doubles import library
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

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


@pytest.mark.parametrize("version", ["2.24", "2.28", "2.32"])
def test_trace_has_algorithms_and_channels(launch: Launcher, version: str) -> None:
    env = {**_ON, **library.of_version(version)}
    found = launch(2, _traced, provider="cuda", env=env, fresh=True)[0]
    channels = 2 if version > "2.24" else None  # of messages
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


@on_ranks(2, provider="cuda", env=_ON, fresh=True)
def test_profiler_is_off_outside_of_traces(rank: Rank) -> None:
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
    assert len(plugin.stop_profile(before)) == 1


def test_trace_file_has_algorithms(launch: Launcher, tmp_path: Path) -> None:
    path = str(tmp_path / "step.json")
    env = {**_ON, "NCCL_DOUBLE_NET_STEPS": "2", **library.of_version("2.32")}
    file = launch(2, _all_reduce_once, path, provider="cuda", env=env, fresh=True)[0]
    events = json.loads(Path(file).read_text())["traceEvents"]
    (ran,) = [one for one in events if one.get("cat") == "operation"]
    assert ran["name"] == "all_reduce"
    assert ran["args"]["algorithm"] == "Ring"
    assert ran["args"]["protocol"] == "LL"
    assert ran["args"]["channels"] == 1
    assert ran["args"]["kernel"]["started"] == 1
    assert ran["args"]["proxy"]["steps"] == 4  # both ways
    (trace,) = chrome.load(file)
    (loaded,) = trace.operations
    assert loaded.kernel is not None
    assert loaded.kernel._asdict() == ran["args"]["kernel"]
    assert loaded.proxy is not None
    assert loaded.proxy._asdict() == ran["args"]["proxy"]


def _all_reduce_once(rank: Rank, path: str) -> str | None:
    buffer = rank.memory.put(np.ones(64, np.float32))
    rank.comm.async_error()  # creates the communicator
    with nccl.trace(path) as trace:
        rank.comm.all_reduce(buffer)
    return trace.path


def _profiled(rank: Rank) -> list[tuple[Any, ...]]:
    small, received, large = (
        rank.memory.put(np.ones(count, np.float32)) for count in (64, 1 << 20, 1 << 20)
    )
    with nccl.trace() as trace:
        rank.comm.all_reduce(large)
        with nccl.group():
            rank.comm.broadcast(small, 0)
            rank.comm.send(large, 1 - rank.rank)
            rank.comm.recv(received, 1 - rank.rank)
    assert trace.process is not None
    return [(one.launch, one.kernel, one.proxy) for one in trace.process.operations]


@pytest.mark.parametrize("version", ["2.24", "2.32"])
def test_trace_has_channel_times_and_proxy_waits(launch: Launcher, version: str) -> None:
    steps, seconds = 20, 0.001
    env = {
        **_ON,
        **library.of_version(version),
        "NCCL_DOUBLE_NET_STEPS": str(steps),
        "NCCL_DOUBLE_NET_SECONDS": str(seconds),
        "CUDA_DOUBLE_KERNEL_SECONDS": "0.005",
    }
    found = launch(2, _profiled, provider="cuda", env=env, fresh=True)[0]
    launches = [one[0] for one in found]
    assert launches[0] != launches[1]
    assert launches[1] == launches[2] == launches[3]  # one kernel
    counts = (16, 1, 2, 2)
    for (_, kernel, proxy), channels, directions in zip(found, counts, (2, 2, 1, 1), strict=True):
        if version == "2.24":
            assert kernel is None
        else:
            assert kernel[:4] == (0, channels - 1, channels, channels)
            assert 5e6 <= kernel.shortest <= kernel.longest <= kernel.duration < 60e9
        assert proxy[:3] == (channels * directions, channels * directions * steps, 0)
    sends, receives = found[2][2], found[3][2]
    least = 2 * steps * seconds * 1e9
    assert sends.send >= least > sends.receive == sends.receive_gpu == 0
    assert receives.receive >= least > receives.send == receives.send_gpu == 0


@on_ranks(2, provider="cuda", env=_ON, fresh=True)
def test_a_graph_of_a_trace_is_launched_later(rank: Rank) -> None:
    """NCCL stores the event mask with a captured operation."""
    from pynccl._internal import plugin

    buffer = rank.memory.put(np.ones(64, np.float32))
    stream = rank.stream()
    rank.comm.all_reduce(buffer)
    before = plugin.start_profile()
    with nccl.capture(stream) as graph:
        rank.comm.all_reduce(buffer, stream=stream)
    counts = []
    for _ in range(2):
        graph.launch(stream)
        stream.synchronize()
        counts.append(len(plugin.stop_profile(before)))
    assert counts == [1, 1]


def _warnings_without_common_version(rank: Rank) -> list[str]:
    from pynccl._internal import plugin

    plugin.interfaces = lambda path, _: [8, 9] if "nccl.so.2" in str(path) else [1, 6]  # type: ignore[assignment]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _traced(rank)
    return [str(one.message) for one in found]


def test_unknown_version_is_named(launch: Launcher) -> None:
    env = {**_ON, "NCCL_DOUBLE_PLUGINS": "0"}
    found = launch(2, _warnings_without_common_version, provider="cuda", env=env, fresh=True)[0]
    (text,) = found
    assert text.partition(" looks")[2] == (
        " for ncclProfiler_v8, ncclProfiler_v9, and pynccl's plugin has versions 1 to 6: there are "
        "no algorithms in it"
    )
