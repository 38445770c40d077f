"""Proves that a collective accepts its own configuration and gives the same bits with it, alone, in
groups and in plans, on every path; that its event is recorded when it begins; and that the error
for an unavailable choice names it and leaves the communicator usable.
"""

from __future__ import annotations

import gc
import pickle
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import collectives
from tests.support.collectives import Case, Runner
from tests.support.launcher import Launcher
from tests.support.old_nccl import compile_nccl
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_COUNTS = (0, 1, 1009, 70_001)
_RINGS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
_OF_HOST = ("staged", "DIRECT")


def _run(rank: Rank, names: tuple[str, ...], config: nccl.CollConfig) -> int:
    cases = (
        Case(name, "float16", count, "SUM", stream=stream, root=count % rank.nranks)
        for name in names
        for count in _COUNTS
        for stream in (False, True)
    )
    return Runner(rank, config).run_all(cases)


@pytest.mark.parametrize(
    ("provider", "algorithm", "threads"),
    [
        *(("host", algorithm, algorithm == "ring") for algorithm in (*_OF_HOST, "ring")),
        ("host", None, False),
        *(pytest.param("cuda", None, threads, marks=pytest.mark.gpu) for threads in (False, True)),
        # The only algorithm that NCCL has on every GPU.
        pytest.param("cuda", "ring", False, marks=pytest.mark.gpu),
    ],
    indirect=["provider"],
)
def test_values(launch: Launcher, provider: str, algorithm: str | None, threads: bool) -> None:
    """Every path gives the same."""
    names: tuple[str, ...] = collectives.ALL
    options: dict[str, Any] = {}
    if algorithm:
        chosen = provider == "cuda" or algorithm in _OF_HOST
        options = {"algorithm": algorithm, "force_algorithm": chosen}
    if provider == "cuda":
        names = _RINGS if algorithm else collectives.ALL[not threads :: 2]
    config = nccl.CollConfig(
        min_ctas=2, max_ctas=2, cga_cluster_size=0, cta_policy=raw.NCCL_CTA_POLICY_DEFAULT,
        profiler_tag=42, **options,
    )  # fmt: skip
    launch(3, _run, names, config, provider=provider, threads=threads)


@on_ranks(2, env={"HOSTNCCL_CMA": "0"})
def test_an_unavailable_path_is_refused(rank: Rank) -> None:
    """The direct path requires a kernel that lets processes read each other's memory."""
    x = np.ones(5, np.float32)
    text = 'config->algSelection="direct" is not available for ncclAllReduce'
    with pytest.raises(nccl.NcclInvalidArgumentError, match=text):
        rank.comm.all_reduce(x, config=nccl.CollConfig(algorithm="direct"))
    rank.comm.all_reduce(x, config=nccl.CollConfig(algorithm="direct", force_algorithm=False))
    assert (x == rank.nranks).all()


def test_unknown_algorithms_are_refused(comm: nccl.Communicator) -> None:
    x = np.ones(5, np.float32)
    for algorithm in ("ring", "staged,", "^direct", "staged,direct", "direct staged"):
        with pytest.raises(nccl.NcclInvalidArgumentError, match="algSelection"):
            comm.all_reduce(x, config=nccl.CollConfig(algorithm=algorithm))
        config = nccl.CollConfig(algorithm=algorithm, force_algorithm=False)
        comm.all_reduce(x, config=config)


@on_ranks(2)
def test_ranks_with_different_paths_are_an_error(rank: Rank) -> None:
    """The error on each rank shows the path and the tag of both calls."""
    algorithm = ("staged", "direct")[rank.rank]
    config = nccl.CollConfig(algorithm=algorithm, profiler_tag=0x2A + rank.rank)
    with pytest.raises((nccl.NcclInvalidUsageError, nccl.NcclRemoteError)) as caught:
        rank.comm.all_reduce(np.ones(4, np.float32), config=config)
    for call in ("staged, tag=0x2a", "direct, tag=0x2b"):
        assert f"ncclAllReduce(count=4, float32, sum, {call})" in str(caught.value)
    rank.comm.abort()


@on_ranks(2, by="provider")
def test_groups_and_plans(rank: Rank) -> None:
    memory, comm, stream = rank.memory, rank.comm, rank.stream()
    event = rank.event()
    x, y = (memory.put(np.zeros(100, np.float32)) for _ in range(2))
    config = nccl.CollConfig(profiler_tag=1, launch_event=event)
    with nccl.plan() as plan:
        comm.all_reduce(x, stream=stream, config=config)
        comm.all_reduce(y, nccl.MAX, stream=stream)
    del config
    gc.collect()
    for turn in range(5):
        memory.set(x, turn + rank.rank)
        memory.set(y, turn - rank.rank)
        plan()
        event.synchronize()
        stream.synchronize()
        assert (memory.get(x) == turn * rank.nranks + sum(range(rank.nranks))).all()
        assert (memory.get(y) == turn).all()
    gathered = memory.put(np.zeros(100 * rank.nranks, np.float32))
    with nccl.group():
        comm.all_gather(y, out=gathered, stream=stream)
        comm.broadcast(x, 0, stream=stream, config=nccl.CollConfig(max_ctas=1))
    stream.synchronize()
    assert (memory.get(gathered) == 4).all()
    assert (memory.get(x) == 4 * rank.nranks + sum(range(rank.nranks))).all()


@pytest.mark.parametrize("grouped", [False, True])
def test_the_event_is_recorded_when_the_operation_begins(
    pair: list[nccl.Communicator], grouped: bool
) -> None:
    """After earlier work of the stream and before the end of the collective."""
    streams, events = [[of("host") for _ in pair] for of in (nccl.Stream, nccl.Event)]
    buffers, others = ([np.ones(10, np.float32) for _ in pair] for _ in range(2))
    gate = threading.Event()
    streams[0].launch(gate.wait)

    def call(rank: int) -> None:
        config = nccl.CollConfig(launch_event=events[rank])
        with nccl.group() if grouped else nullcontext():
            pair[rank].all_reduce(buffers[rank], stream=streams[rank], config=config)
            if grouped:
                pair[rank].all_reduce(others[rank], stream=streams[rank])

    call(0)
    assert not events[0].query()
    gate.set()
    events[0].synchronize()
    assert not streams[0].query()  # the other rank has not called yet
    call(1)
    for stream in streams:
        stream.synchronize()
    assert events[1].query()
    assert (buffers[0] == 2).all()
    assert (others[0] == (2 if grouped else 1)).all()


def test_the_event_of_an_operation_on_this_thread(comm: nccl.Communicator) -> None:
    for count in (10, 0):
        event = nccl.Event("host")
        comm.all_reduce(np.ones(count), config=nccl.CollConfig(launch_event=event))
        event.synchronize()
        assert event.query()


@pytest.mark.parametrize("grouped", [False, True])
def test_the_event_of_a_captured_operation(comm: nccl.Communicator, grouped: bool) -> None:
    """It is recorded in the graph, and a stream that waits for it joins the capture."""
    stream, other = nccl.Stream("host"), nccl.Stream("host")
    begun, ended = nccl.Event("host"), nccl.Event("host")
    seen: list[int] = []
    with nccl.capture(stream) as graph:
        config = nccl.CollConfig(launch_event=begun)
        with nccl.group() if grouped else nullcontext():
            comm.all_reduce(np.ones(3), stream=stream, config=config)
            comm.all_reduce(np.ones(3), stream=stream)
        other.wait(begun)
        other.launch(lambda: seen.append(1))
        ended.record(other)
        stream.wait(ended)
    other.synchronize()
    assert not seen
    for _ in range(2):
        graph.launch(stream)
    stream.synchronize()
    assert seen == [1, 1]
    graph.close()


def test_events_in_a_group(comm: nccl.Communicator) -> None:
    """Operations of a communicator begin together on all streams. One of them has an event."""
    x, (first, second) = np.ones(3), (nccl.Stream("host") for _ in range(2))
    event, gate = nccl.Event("host"), threading.Event()
    config, other = nccl.CollConfig(launch_event=event), nccl.CollConfig(launch_event=event.handle)
    first.launch(gate.wait)
    with nccl.group():
        comm.all_reduce(np.ones(3), stream=first)
        comm.all_reduce(x, stream=second, config=config)
    assert not event.query()
    gate.set()
    event.synchronize()
    second.synchronize()
    message = "rank 0 has more than one launchCompletionEvent in this group"
    with pytest.raises(nccl.NcclInvalidUsageError, match=message), nccl.group():  # noqa: PT012
        comm.all_reduce(np.ones(3), config=config)
        comm.all_reduce(x, config=other)
    comm.all_reduce(x, config=config)


class _TorchEvent:
    """As torch.cuda.Event before it is first recorded."""

    cuda_event = 0


def test_wrong_events_are_refused(comm: nccl.Communicator) -> None:
    x, timed = np.ones(3), nccl.Event("host", timing=True)
    with pytest.raises(nccl.NcclInvalidArgumentError, match="was created with timing"):
        comm.all_reduce(x, config=nccl.CollConfig(launch_event=timed))
    with pytest.raises(nccl.NcclInvalidArgumentError, match="is not an event of hostnccl"):
        comm.all_reduce(x, config=nccl.CollConfig(launch_event=0x1000))
    event = nccl.Event("host")
    comm.all_reduce(x, config=nccl.CollConfig(launch_event=event.handle))
    assert event.query()
    with pytest.raises(TypeError, match="launch_event: expected an Event"):
        nccl.CollConfig(launch_event="now")
    with pytest.raises(ValueError, match=r"launch_event: .* has no cudaEvent_t yet"):
        nccl.CollConfig(launch_event=_TorchEvent())
    event.close()
    with pytest.raises(ValueError, match="closed"):
        nccl.CollConfig(launch_event=event)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"min_ctas": 0}, ValueError, "min_ctas: 0 is not in"),
        ({"max_ctas": -1}, ValueError, "max_ctas: -1 is not in"),
        ({"nvls_ctas": 2**31}, ValueError, "nvls_ctas: 2147483648 is not in"),
        ({"min_ctas": 4, "max_ctas": 2}, ValueError, "min_ctas: 4 is above max_ctas, 2"),
        ({"cga_cluster_size": 9}, ValueError, r"cga_cluster_size: 9 is not in \[0, 8\]"),
        ({"cta_policy": 4}, ValueError, r"cta_policy: 4 is not in \[0, 3\]"),
        ({"algorithm": ""}, ValueError, "algorithm: the string is empty"),
        ({"algorithm": 3}, TypeError, "algorithm: expected a str or None, got 3"),
        ({"force_algorithm": 1}, TypeError, "force_algorithm: expected a bool"),
        ({"profiler_tag": -1}, ValueError, "profiler_tag: -1 is out of range"),
        ({"profiler_tag": 2**63}, ValueError, r"profiler_tag: 9223372036854775808 is out of range"),
        ({"min_ctas": "4"}, TypeError, "min_ctas: expected an integer"),
        ({"ctas": 4}, TypeError, "CollConfig"),
    ],
)
def test_wrong_settings_are_refused(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        nccl.CollConfig(**arguments)


def test_attributes_and_representation(comm: nccl.Communicator) -> None:
    config = nccl.CollConfig(max_ctas=4, algorithm="ring", force_algorithm=False, profiler_tag=7)
    assert repr(config) == (
        "CollConfig(max_ctas=4, algorithm='ring', force_algorithm=False, profiler_tag=7)"
    )
    assert (config.min_ctas, config.max_ctas, config.algorithm) == (None, 4, "ring")
    assert (config.nvls_ctas, config.cga_cluster_size, config.cta_policy) == (None, None, None)
    assert (config.force_algorithm, config.profiler_tag, config.launch_event) == (False, 7, None)
    assert repr(pickle.loads(pickle.dumps(config))) == repr(config)
    assert repr(nccl.CollConfig()) == "CollConfig()"
    with pytest.raises(AttributeError):
        config.max_ctas = 5
    with pytest.raises(TypeError, match="config: expected a CollConfig or None"):
        comm.all_reduce(np.ones(3), config=nccl.Config())
    with pytest.raises(TypeError, match=r"send\(\) got an unexpected keyword argument 'config'"):
        comm.send(np.ones(3), 0, config=config)
    comm.all_reduce(np.ones(3), config=None)


def _raw_config(**fields: object) -> raw.ncclCollConfig_t:
    config = raw.ncclCollConfig_t()
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def test_hostnccl_checks_the_struct_like_nccl(comm: nccl.Communicator) -> None:
    x = np.ones(3, np.float32)
    arguments = (x.ctypes.data, x.ctypes.data, 3, raw.ncclFloat32, raw.ncclSum, comm.handle, 0)
    call = comm.library.ncclAllReduceConfig
    for name, value, text in (
        ("magic", 1, "config->magic=0x1: it was not initialized"),
        ("forceAlgSelection", 2, "config->forceAlgSelection=2 is neither 0 nor 1"),
        ("CTAPolicy", 4, "config->CTAPolicy=4 is not a combination"),
        ("CTAPolicy", -1, "config->CTAPolicy=-1 is not a combination"),
    ):
        with pytest.raises(nccl.NcclInvalidArgumentError, match=text):
            call(*arguments, _raw_config(**{name: value}))
    # A value out of range counts as unset. A tag may be any number.
    accepted = _raw_config(minCTAs=-5, maxCTAs=0, nvlsCTAs=9999, algSelection="")
    accepted.userProfilerTag = 2**64 - 1
    call(*arguments, accepted)
    call(*arguments, None)


_ALL_REDUCE_CONFIG = """
#include <string.h>
int ncclAllReduceConfig(const void* send, void* out, size_t count, int dtype, int op, void* comm,
                        void* stream, const void* config) {
  memcpy(out, config, 8);  /* the size and the version */
  memcpy((char*)out + 8, (const char*)config + 12, 4);
  return 0;
}
"""


def test_an_older_nccl_gets_its_own_struct(tmp_path: Path) -> None:
    """2.31 has all fields but the event."""
    out = np.zeros(16, np.uint8)
    path = compile_nccl(tmp_path, 23102, _ALL_REDUCE_CONFIG, with_communicators=True)
    with nccl.Communicator(1, bytes(128), 0, provider=path) as comm:
        comm.all_reduce(out, config=nccl.CollConfig(max_ctas=1))
        assert (out[:8].view(np.uint64)[0], out[8:12].view(np.uint32)[0]) == (64, 23102)
        message = r"config.launch_event needs NCCL 2\.32\.0; .* is 2\.31\.2"
        with pytest.raises(ValueError, match=message):
            comm.all_reduce(out, config=nccl.CollConfig(launch_event=0x1000))
        with nccl.group(), pytest.raises(ValueError, match=message):  # at the call
            comm.all_reduce(out, config=nccl.CollConfig(launch_event=0x1000))
