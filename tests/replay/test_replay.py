"""Proves that a replay issues the recorded operations, which a recording of the replay contains."""

from __future__ import annotations

import dataclasses
import functools
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pynccl.tools.replay import Result, replay
from pynccl.tools.replay.compiler import compile_programs
from pynccl.tools.replay.rank import Options, run_rank
from pynccl.tools.replay.recorded import gather
from pynccl.tools.trace import chrome
from pynccl.tools.trace.model import ProcessTrace
from pynccl.tools.trace.shape import ITEMSIZES
from tests.support.rank import Rank
from tests.support.recordings import World, generated
from tests.support.tier import FULL

pytestmark = pytest.mark.usefixtures("kept_ranks")

_PROGRAMS = 12 if FULL else 4


def _is_good(result: Result) -> None:
    assert (result.findings, result.failures) == ([], {})
    assert result.ok


def _recorded_rank(file: str, rank: Rank, options: Options, folder: str) -> None:
    from pynccl import _C

    _C.set_process_rank(rank.rank)
    _C.start_recording(file, 1 << 26)
    try:
        run_rank(rank, options, folder)
    finally:
        _C.stop_recording()


def _replayed(world: World, folder: Path, scale: float = 1.0, provider: str = "host") -> Result:
    """Replay recordings, and compare a recording of the replay with them."""
    with pytest.MonkeyPatch.context() as patch:
        record = functools.partial(_recorded_rank, str(folder / "replay"))
        patch.setattr("pynccl.tools.replay.run.run_rank", record)
        result = replay(world.traces, scale=scale, provider=provider, timeout=30)
    _is_good(result)
    assert result.operations == sum(len(trace.operations) for trace in world.traces)
    for rank, trace in enumerate(world.traces):
        path = folder / f"replay.{rank}"
        (again,) = chrome.load(path)
        path.unlink()
        _check_same(trace, again, scale)
    return result


def _check_same(trace: ProcessTrace, again: ProcessTrace, scale: float) -> None:
    """Check the arguments, and that streams, groups and buffers map to those of the replay."""
    names = {one.name: one.id for one in again.communicators.values()}
    streams: dict[int, int] = {0: 0}
    groups: dict[int | None, int | None] = {None: None}
    buffers: dict[int, int] = {}
    for one, other in zip(trace.operations, again.operations, strict=True):
        assert other.communicator == names[one.communicator]
        kept = ("kind", "number", "dtype", "op", "root", "peer")
        assert [getattr(one, name) for name in kept] == [getattr(other, name) for name in kept]
        assert other.count == max(1, int(one.count * scale))
        assert streams.setdefault(one.stream, other.stream) == other.stream
        assert groups.setdefault(one.group, other.group) == other.group
        for used, name in ((one.sendbytes, "sendbuff"), (one.recvbytes, "recvbuff")):
            if used:
                place = getattr(other, name)
                assert buffers.setdefault(getattr(one, name), place) == place
        distance = one.recvbuff - one.sendbuff
        if -one.recvbytes < distance < one.sendbytes:  # in place: the same number of blocks
            assert (other.recvbuff - other.sendbuff) * one.count == distance * other.count
    assert len(set(streams.values())) == len(streams)
    assert len(set(groups.values())) == len(groups)
    if scale >= 1:  # a smaller scale moves the starts of overlapping buffers to one address
        assert len(set(buffers.values())) == len(buffers)


@settings(
    max_examples=_PROGRAMS,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(
    seed=st.integers(0, 2**32),
    nranks=st.integers(1, 4),
    streams=st.integers(1, 3),
    scale=st.sampled_from([1.0, 1.0, 0.1, 0.37, 2.5]),
)
@example(seed=3, nranks=4, streams=1, scale=0.1)
def test_generated_programs(
    tmp_path_factory: pytest.TempPathFactory, seed: int, nranks: int, streams: int, scale: float
) -> None:
    world = generated(random.Random(seed), nranks, 40, streams=streams)
    _replayed(world, tmp_path_factory.mktemp("replay"), scale)


def test_providers(provider: str, tmp_path: Path) -> None:
    nranks, without = 2, frozenset[str]()
    if provider == "cuda":
        from tests.support import gpu

        gpu.require(provider, "ncclMemAlloc")
        nranks = min(nranks, gpu.count())
        # NCCL does not scale 8-bit floats for one rank.
        refused = gpu.FLOAT8 if nranks == 1 else gpu.without(provider)
        without = frozenset(name.removesuffix("fn") for name in refused)
    world = generated(random.Random(5), nranks, 60, without=without)
    result = _replayed(world, tmp_path, provider=provider)
    assert all(row.replayed > 0 for row in result.rows)


def test_reductions_of_every_dtype(tmp_path: Path) -> None:
    world = World(3)
    for dtype in ITEMSIZES:
        for op in ("sum", "prod", "min", "max", "avg", "user-defined"):
            world.all("all_reduce", dtype=dtype, op=op, count=300)
    _replayed(world, tmp_path)


def test_streams_that_share_a_buffer_are_ordered() -> None:
    world = World(2)
    other = world.communicator("a", [0, 1])
    buffer = world.buffer()
    for _ in range(20):
        world.all("all_reduce", stream=16, sendbuff=buffer, recvbuff=buffer, count=5000)
        world.all("all_reduce", other, stream=32, sendbuff=buffer, recvbuff=buffer, count=5000)
    programs = compile_programs(gather(world.traces))
    for program in programs:
        assert len(program.steps) == 40
        for number, step in enumerate(program.steps[1:], 1):
            own, before = (2, 1) if number % 2 else (1, 2)
            assert step.waits == [(own, number - 1, before)]
    _is_good(replay(world.traces))


def test_threads_on_default_streams_do_not_block_each_other() -> None:
    # Rank 0 calls in the order of its threads 1 and 2, rank 1 in the other one.
    world = World(2)
    other = world.communicator("a", [0, 1])
    for _ in range(5):
        world.call(0, "all_reduce", thread=1)
        world.call(0, "all_reduce", other, thread=2)
        world.call(1, "all_reduce", other, thread=2)
        world.call(1, "all_reduce", thread=1)
    _is_good(replay(world.traces, timeout=10))


def test_the_recorded_times_are_preserved() -> None:
    world = World(2)
    for _ in range(4):
        world.all("all_reduce")
    for trace in world.traces:
        trace.operations = [
            dataclasses.replace(operation, called=number * 200_000_000)
            for number, operation in enumerate(trace.operations)
        ]
    result = replay(world.traces, speed="recorded")
    _is_good(result)
    assert result.seconds >= 0.6
    # A busy machine may delay one of them.
    assert any(replay(world.traces).seconds < 0.6 for _ in range(20))


def test_rows_have_both_times() -> None:
    world = World(2)
    for duration in (1000, 2000, 9000):
        world.all("all_reduce", count=1000, began=0, ended=duration)
    (row,) = replay(world.traces, scale=0.5).rows
    assert (row.kind, row.nranks, row.nbytes, row.replayed_nbytes) == ("all_reduce", 2, 4000, 2000)
    assert row.calls == 6
    assert row.recorded == pytest.approx(2e-6)
    assert row.ratio == pytest.approx(row.replayed / row.recorded)
    assert row.busbw == pytest.approx(2000 / row.replayed / 1e9)
