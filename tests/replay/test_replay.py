"""Proves that replayed programs compute the results that their operations define."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pynccl.tools.replay import Result, replay
from pynccl.tools.replay.compiler import compile_programs
from pynccl.tools.replay.rank import Options
from pynccl.tools.replay.recorded import gather
from pynccl.tools.replay.run import run_programs
from pynccl.tools.trace.shape import ITEMSIZES
from tests.support.recordings import World, generated
from tests.support.tier import FULL

pytestmark = pytest.mark.usefixtures("kept_ranks")

_PROGRAMS = 12 if FULL else 4


def _is_good(result: Result) -> None:
    assert (result.findings, result.failures, result.differences) == ([], {}, {})
    assert result.ok


@settings(
    max_examples=_PROGRAMS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(
    seed=st.integers(0, 2**32),
    nranks=st.integers(1, 4),
    streams=st.integers(1, 3),
    scale=st.sampled_from([1.0, 1.0, 0.1, 0.37, 2.5]),
)
def test_generated_programs(seed: int, nranks: int, streams: int, scale: float) -> None:
    world = generated(random.Random(seed), nranks, 40, streams=streams)
    result = replay(world.traces, scale=scale, timeout=30)
    _is_good(result)
    assert result.operations == sum(len(trace.operations) for trace in world.traces)
    # Averages of some dtypes are not exact; scaled buffers of a group may overlap.
    assert result.checked > 0.8 * result.outputs


def test_providers(provider: str) -> None:
    nranks, without = 2, frozenset[str]()
    if provider == "cuda":
        from tests.support import gpu

        gpu.require(provider, "ncclMemAlloc")
        nranks = min(nranks, gpu.count())
        # NCCL does not scale 8-bit floats for one rank.
        refused = gpu.FLOAT8 if nranks == 1 else gpu.without(provider)
        without = frozenset(name.removesuffix("fn") for name in refused)
    world = generated(random.Random(5), nranks, 60, without=without)
    result = replay(world.traces, provider=provider, timeout=30)
    _is_good(result)
    assert result.checked == result.outputs > 0
    assert all(row.replayed > 0 for row in result.rows)


def test_reductions_of_every_dtype() -> None:
    world = World(3)
    for dtype in ITEMSIZES:
        for op in ("sum", "prod", "min", "max", "avg", "user-defined"):
            world.all("all_reduce", dtype=dtype, op=op, count=300)
    result = replay(world.traces)
    _is_good(result)
    # An average over three ranks may be rounded where NCCL multiplies by 1/3.
    assert result.outputs - result.checked == 3 * len(["bfloat16", "float8_e4m3", "float8_e5m2"])


def test_wrong_data_is_reported_with_rank_communicator_and_sequence() -> None:
    world = World(3)
    for _ in range(3):
        world.all("all_reduce", count=1000)
    world.all("all_gather", count=10)
    recorded = gather(world.traces)
    programs = compile_programs(recorded)
    op = programs[1].operations[1]
    assert op.source is not None
    op.source = op.source.at(1)  # rank 1 sends data that the others do not expect
    result = run_programs(recorded, programs, Options(timeout=30))
    assert not result.ok
    assert sorted(result.differences) == [0, 1, 2]
    for rank, (difference,) in result.differences.items():
        assert difference.communicator == "0" * 16
        assert difference.sequence == 2
        assert f"rank {rank} of communicator {'0' * 16}: all_reduce #2 " in difference.text
        assert "element 0 of the result is wrong: it is " in difference.text


def test_streams_that_share_a_buffer_are_ordered() -> None:
    world = World(2)
    other = world.communicator("a", [0, 1])
    buffer = world.buffer()
    for _ in range(20):
        world.all("all_reduce", stream=16, sendbuff=buffer, recvbuff=buffer, count=5000)
        world.all("all_reduce", other, stream=32, sendbuff=buffer, recvbuff=buffer, count=5000)
    result = replay(world.traces)
    _is_good(result)
    assert result.checked == result.outputs == 80


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
    (row,) = replay(world.traces, scale=0.5, data=False).rows
    assert (row.kind, row.nranks, row.nbytes, row.replayed_nbytes) == ("all_reduce", 2, 4000, 2000)
    assert row.calls == 6
    assert row.recorded == pytest.approx(2e-6)
    assert row.ratio == pytest.approx(row.replayed / row.recorded)
    assert row.busbw == pytest.approx(2000 / row.replayed / 1e9)
