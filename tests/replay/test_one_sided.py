"""Proves that one-sided operations are replayed with the recorded windows, offsets and order, that
the contents of windows are compared, and that waits for missing signals are reported.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pynccl import cli, nccl
from pynccl.tools.replay import ReplayError, Result, load, replay
from pynccl.tools.replay.check import check
from pynccl.tools.replay.compiler import compile_programs
from pynccl.tools.replay.program import Op, Program
from pynccl.tools.replay.rank import Options
from pynccl.tools.replay.recorded import gather
from pynccl.tools.replay.run import run_programs
from pynccl.tools.trace.model import GraphLaunch, Operation, ProcessTrace, Signal, Window
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.recordings import World
from tests.support.tier import FULL

pytestmark = pytest.mark.usefixtures("kept_ranks")

STEPS = 5
HALO = 64  # elements
PAGE = 4096
_FORMS = ("recording 4", "trace 2", *(("recording 2", "trace 4") if FULL else ()))


def _halo(rank: Rank) -> None:
    """A halo exchange of two fields on a ring: sources and halos are parts of one window each."""
    import numpy as np

    comm, n = rank.comm, rank.world_size
    left, right = (rank.rank - 1) % n, (rank.rank + 1) % n
    stream = nccl.Stream(rank.provider)
    small, large = comm.mem_alloc(PAGE), comm.mem_alloc(4 * PAGE)
    fields = [(np.from_dlpack(one).view(np.float32), comm.register_window(one)) for one in
              (small, large)]  # fmt: skip
    for step in range(STEPS):
        for array, window in fields:
            last = array.size - HALO
            # The signals of the previous step prevent overwriting a halo that is still read.
            with nccl.group():
                comm.put_signal(array[HALO : 2 * HALO], left, window, last * 4, stream=stream)
                comm.put_signal(array[last - HALO : last], right, window, 0, stream=stream)
                comm.wait_signal([left, right] if n > 2 else {left: 2}, stream=stream)
        if step % 2:
            comm.signal(left, stream=stream)
            comm.wait_signal(right, stream=stream)
        comm.all_reduce(fields[0][0][HALO : 2 * HALO], stream=stream)
    # The source is in one window, the target in the other.
    comm.put_signal(fields[0][0][100:200], right, fields[1][1], 1024, stream=stream)
    comm.wait_signal(left, stream=stream)
    with nccl.plan() as planned:
        comm.put_signal(fields[1][0][512:544], left, fields[0][1], 1024)
        comm.wait_signal(right)
    for _ in range(2):
        planned(stream=stream)
    comm.barrier(stream=stream)
    stream.synchronize()


def _record(rank: Rank, prefix: str) -> None:
    from pynccl import _C

    _C.start_recording(f"{prefix}-{rank.rank}", 1 << 26)
    try:
        _halo(rank)
    finally:
        _C.stop_recording()


def _trace(rank: Rank, prefix: str) -> None:
    with nccl.trace(f"{prefix}-{rank.rank}.json.gz"):
        _halo(rank)


@pytest.fixture(scope="module")
def launched() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


Files = dict[str, list[str]]


@pytest.fixture(scope="module")
def files(launched: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Recordings and traces of the program, by form and number of ranks."""
    found = {}
    for form in _FORMS:
        kind, nranks = form.split()
        folder = tmp_path_factory.mktemp("files")
        launched(int(nranks), _record if kind == "recording" else _trace, str(folder / "file"))
        found[form] = sorted(map(str, folder.iterdir()))
    return found


def _traces(paths: list[str]) -> list[ProcessTrace]:
    return [trace for path in paths for trace in load(path)]


def _is_good(result: Result) -> None:
    assert (result.findings, result.failures, result.differences) == ([], {}, {})
    assert result.ok


@pytest.mark.parametrize(
    ("form", "scale"),
    list(itertools.product(_FORMS, (1.0, 0.1)))
    if FULL
    else [("recording 4", 1.0), ("trace 2", 0.1)],
)
def test_a_halo_exchange(files: Files, form: str, scale: float) -> None:
    traces = _traces(files[form])
    n = len(traces)
    result = replay(traces, scale=scale)
    _is_good(result)
    assert result.operations == sum(len(trace.operations) for trace in traces)
    # The all-gathers of two registrations, all-reduces and the barrier; on each rank four halos and
    # two other regions.
    assert (result.checked, result.outputs) == (n * (2 + STEPS + 1 + 6),) * 2
    assert result.shared == 0
    assert not [note for note in result.notes if "window" in note or "signal" in note]


@pytest.mark.parametrize("form", ["recording 4", "trace 2"])
def test_windows_offsets_and_signals_are_the_recorded_ones(files: Files, form: str) -> None:
    traces = _traces(files[form])
    programs = compile_programs(gather(traces))
    for trace, program in zip(traces, programs, strict=True):
        small, large = trace.windows
        assert program.windows == {(0, 1): PAGE, (0, 2): 4 * PAGE}
        assert not program.signals  # the program has waited for all of them
        puts = [op for op in program.operations if op.kind == "put_signal"]
        assert len(puts) == 4 * STEPS + 3
        for op in puts:
            recorded = op.recorded
            home = small if op.home == 1 else large
            assert op.send == recorded.sendbuff - home.address
            assert 0 <= op.send <= home.nbytes - recorded.sendbytes
            assert (op.window, op.recv) == (recorded.window, recorded.offset)
        assert [(op.home, op.window) for op in puts[-3:]] == [(1, 2), (2, 1), (2, 1)]
        kinds = [op.kind for op in program.operations]
        assert kinds == [one.kind for one in trace.operations]
        grouped = [[op.kind for op in step.ops] for step in program.steps if step.grouped]
        assert sorted(grouped[0]) == ["put_signal", "put_signal", "wait_signal"]
        waits = [op.recorded.signals for op in program.operations if op.kind == "wait_signal"]
        assert waits == [one.signals for one in trace.operations if one.kind == "wait_signal"]
        assert sum(one.times for one in waits[0]) == 2


def _run(
    traces: list[ProcessTrace], change: Callable[[list[Program]], None], timeout: float = 30
) -> Result:
    recorded = gather(traces)
    programs = compile_programs(recorded)
    change(programs)
    return run_programs(recorded, programs, Options(timeout=timeout))


def _last_put(program: Program, window: int, offset: int) -> list[Op]:
    return [
        op
        for op in program.operations
        if op.kind == "put_signal" and (op.window, op.recorded.offset) == (window, offset)
    ]


@pytest.mark.parametrize("what", ["offset", "source", "window"])
def test_a_misplaced_put_is_reported(files: Files, what: str) -> None:
    def change(programs: list[Program]) -> None:
        op = _last_put(programs[1], 2, 0)[-1]  # to the left halo of rank 2
        if what == "offset":
            op.recv += 4
            op.sent -= 1  # behind the halo is the source of rank 2's put to rank 1
        elif what == "window":
            op.window = 1
        else:
            assert op.source is not None
            op.source = op.source.at(1)

    result = _run(_traces(files["recording 4"]), change)
    assert not result.ok
    found = result.differences[2]
    assert any("window 2 at 0, after put_signal sequence" in one.text for one in found), found
    assert all("of rank 1: element 0 of the result is wrong: it is " in one.text for one in found)
    assert set(result.differences) == {2}, result.differences


@pytest.mark.parametrize("form", _FORMS[1:])
def test_a_missing_signal(files: Files, form: str) -> None:
    traces = _traces(files[form])
    operations = traces[1].operations
    index = next(n for n, one in enumerate(operations) if one.kind == "signal")
    operations.pop(index)
    sent = sum(one.kind in ("put_signal", "signal") and one.peer == 0 for one in operations)
    result = replay(traces)
    (finding,) = result.findings
    assert (finding.kind, finding.ranks, finding.waiting) == ("signals", [1], [0])
    waits = [one for one in traces[0].operations if any(s.peer == 1 for s in one.signals)]
    last = waits[-1]
    assert finding.number == last.sequence
    assert (
        f"rank 0 waits for {sent + 1} signals of rank 1 (signal 0, context 0), which has sent "
        f"{sent}: the first wait_signal for more is that with sequence {last.sequence}"
    ) in finding.text
    began = time.monotonic()
    result = replay(traces, check=False, timeout=2)
    assert time.monotonic() - began < 60
    assert not result.ok
    # By the time limit, or when hostnccl detects the deadlock.
    assert any("wait_signal" in text or "deadlock" in text for text in result.failures.values())
    assert any(one.kind == "signals" for one in result.findings)


def test_fewer_ranks(files: Files) -> None:
    traces = _traces(files["recording 4"])
    result = replay(traces, ranks=2)
    _is_good(result)
    programs = compile_programs(gather(traces, 2))
    for rank, program in enumerate(programs):
        peers = {one.peer for op in program.operations for one in op.recorded.signals}
        assert peers == {1 - rank}
        assert {op.peer for op in program.operations if op.kind == "put_signal"} == {1 - rank}
    assert any("dropped" in note for note in result.notes)


# --- constructed recordings


def _with_windows(world: World, sizes: dict[int, int]) -> None:
    """Windows of the first communicator, at addresses that differ by rank."""
    for rank, trace in enumerate(world.traces):
        trace.windows = [
            Window("0" * 16, rank, number, number << 24 | rank << 20, nbytes, 0, None)
            for number, nbytes in sizes.items()
        ]


def _put(world: World, rank: int, peer: int, place: int, offset: int, **fields: Any) -> Operation:  # noqa: ANN401
    home = world.traces[rank].windows[0]
    values = {"window": 1, "signal": 0, "context": 0, "count": 16, **fields}
    return world.call(
        rank, "put_signal", peer=peer, sendbuff=home.address + place, offset=offset, **values
    )


def _wait(world: World, rank: int, *signals: tuple[int, int, int, int], **fields: Any) -> Operation:  # noqa: ANN401
    found = tuple(Signal(*one) for one in signals)
    return world.call(rank, "wait_signal", count=len(found), signals=found, **fields)


def _generated(rng: random.Random, nranks: int, operations: int) -> World:
    """Puts between arbitrary offsets, on several streams, and waits for the signals sent before."""
    world = World(nranks)
    sizes = {1: 4096, 3: 12288}
    _with_windows(world, sizes)
    sent: Counter[tuple[int, int, int]] = Counter()  # to, from, signal
    for _ in range(operations):
        rank, peer = rng.randrange(nranks), rng.randrange(nranks)
        signal, stream = rng.randrange(2), 16 * rng.randrange(3)
        if rng.random() < 0.3:
            pending = [key for key, number in sent.items() if number and key[0] == rank]
            some = rng.sample(pending, min(len(pending), 2))
            signals = [(one[1], rng.randint(1, sent[one]), one[2], 0) for one in some]
            if signals:
                _wait(world, rank, *signals, stream=stream)
            for one, (_, times, _, _) in zip(some, signals, strict=True):
                sent[one] -= times
            continue
        sent[peer, rank, signal] += 1
        if rng.random() < 0.1:
            world.call(rank, "signal", peer=peer, signal=signal, context=0, stream=stream)
            continue
        dtype = rng.choice(["float32", "int8", "float64", "bfloat16"])
        home, window = rng.choice(world.traces[rank].windows), rng.choice(list(sizes))
        fields = {"signal": signal, "context": 0, "stream": stream, "dtype": dtype}
        count = rng.randrange(1, 64)
        place, offset = (8 * rng.randrange((sizes[number] - 512) // 8) for number in
                         (home.number, window))  # fmt: skip
        world.call(
            rank,
            "put_signal",
            peer=peer,
            count=count,
            sendbuff=home.address + place,
            window=window,
            offset=offset,
            **fields,
        )
    return world


@settings(
    max_examples=8 if FULL else 3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(
    seed=st.integers(0, 2**32),
    nranks=st.integers(1, 4),
    operations=st.sampled_from([10, 60]),
    scale=st.sampled_from([1.0, 1.0, 0.1, 0.37, 2.5]),
)
def test_generated_programs(seed: int, nranks: int, operations: int, scale: float) -> None:
    world = _generated(random.Random(seed), nranks, operations)
    result = replay(world.traces, scale=scale, timeout=30)
    _is_good(result)
    assert result.operations == sum(len(trace.operations) for trace in world.traces)


def test_providers(provider: str) -> None:
    nranks = 3
    if provider == "cuda":
        from tests.support import gpu

        nranks = min(nranks, gpu.count())
        if nccl.get_version(provider) < (2, 31, 0):
            pytest.skip("several signals need NCCL 2.31")
    world = _generated(random.Random(8), nranks, 60)
    result = replay(world.traces, provider=provider, timeout=30)
    _is_good(result)
    assert result.checked > 0


def test_remaining_signals_are_awaited_at_the_end() -> None:
    world = World(2)
    _with_windows(world, {1: 8192})
    for _ in range(3):
        _put(world, 0, 1, 0, 4096)
    _wait(world, 1, (0, 1, 0, 0))
    programs = compile_programs(gather(world.traces))
    assert [program.signals for program in programs] == [{}, {0: [Signal(0, 2, 0, 0)]}]
    result = replay(world.traces)
    _is_good(result)
    assert (result.checked, result.outputs) == (1, 1)


def test_signals_and_contexts_have_their_indexes() -> None:
    world = World(2)
    _with_windows(world, {1: 8192})
    _put(world, 0, 1, 0, 4096, signal=2, context=1)
    world.call(0, "signal", peer=1, signal=1, context=0)
    _wait(world, 1, (0, 1, 1, 0), (0, 1, 2, 1))
    _is_good(replay(world.traces))
    world.traces[0].operations.pop()  # the other signal is no substitute
    (finding,) = check(gather(world.traces))
    assert "waits for 1 signals of rank 0 (signal 1, context 0), which has sent 0" in finding.text
    result = replay(world.traces, check=False, timeout=2)
    assert list(result.failures) == [1]


def test_regions_written_by_several_ranks_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(3)
    _with_windows(world, {1: 8192})
    _put(world, 0, 2, 0, 4096)
    _put(world, 1, 2, 0, 4096 + 32)  # overlaps by half
    _put(world, 1, 0, 64, 4096)
    _put(world, 0, 1, 0, 64)  # the source of rank 1's put
    result = replay(world.traces)
    _is_good(result)
    # Three regions of rank 2. The data for rank 0 depends on the time of rank 0's own put.
    assert (result.outputs, result.shared, result.checked) == (5, 2, 2)
    from pynccl.tools.trace import chrome

    path = tmp_path / "trace.json"
    path.write_text(json.dumps(chrome.document(world.traces)))
    assert cli.main(["replay", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 5 results compared" in printed
    assert "2 regions of windows are written by several ranks: not compared" in printed


def test_launches_of_graphs_put_and_wait_each_time() -> None:
    world = World(2)
    _with_windows(world, {1: 8192})
    for rank in range(2):
        fields = {"graph": 1, "group": world.group(), "stream": 16}
        _put(world, rank, 1 - rank, 0, 4096, **fields)
        _wait(world, rank, (1 - rank, 1, 0, 0), **fields)
    for trace in world.traces:
        called = range(10_000, 13_000, 1000)
        trace.launches = [GraphLaunch(1, 16, 1, at, at, None, None) for at in called]
    result = replay(world.traces)
    _is_good(result)
    assert result.operations == 2 * 3 * 2
    assert result.checked == result.outputs == 2
    world.traces[0].launches.pop()
    (finding,) = check(gather(world.traces))
    assert "rank 1 waits for 3 signals of rank 0 (signal 0, context 0), which has sent 2" in (
        finding.text
    )


def test_puts_of_a_rank_on_two_streams_have_no_order() -> None:
    world = World(2)
    _with_windows(world, {1: 8192})
    for stream in (16, 32):
        _put(world, 0, 1, 64 * stream, 4096, stream=stream)
    program = compile_programs(gather(world.traces))[1]
    assert (program.regions, program.shared, program.landed) == (1, 0, [])


def test_the_source_is_found_by_address_and_time() -> None:
    """The memory of window 1 is registered again as window 2; it is also in window 3."""
    world = World(2)
    page = 4096
    for rank, trace in enumerate(world.traces):
        trace.windows = [
            Window("0" * 16, rank, 1, 1 << 24, page, 0, 1500),
            Window("0" * 16, rank, 2, 1 << 24, page, 1600, None),
            Window("0" * 16, rank, 3, 3 << 24, 2 * page, 0, None),
        ]
    for window in (1, 2, 2):
        world.call(0, "put_signal", peer=1, sendbuff=1 << 24, offset=0, window=window)
    world.call(0, "put_signal", peer=1, sendbuff=3 << 24, offset=page, window=3)
    operations = world.traces[0].operations
    operations[1] = dataclasses.replace(operations[1], called=1400)  # its clock is not exact
    puts = compile_programs(gather(world.traces))[0].operations
    assert [(op.home, op.window) for op in puts] == [(1, 1), (2, 2), (2, 2), (3, 3)]
    _is_good(replay(world.traces))


def test_a_put_outside_the_windows_is_rejected() -> None:
    world = World(2)
    _with_windows(world, {1: 8192})
    world.call(1, "put_signal", peer=0, sendbuff=1 << 40, window=1, offset=0)
    with pytest.raises(ReplayError, match=r"rank 1: put_signal with sequence 1 .* outside"):
        replay(world.traces)


@pytest.mark.parametrize("why", ["late", "full"])
def test_recordings_that_begin_late_or_are_full(why: str) -> None:
    world = World(2)
    _with_windows(world, {1: 8192})
    for step in range(4):
        _put(world, 0, 1, 0, 4096 + 64 * step)
        _wait(world, 1, (0, 1, 0, 0))
    operations = world.traces[0].operations
    if why == "late":
        del operations[:2]
    else:
        del operations[2:]
        world.traces[0].dropped = 2
    recorded = gather(world.traces)
    assert check(recorded) == []
    left = [one.sequence for one in recorded.processes[1].operations]
    assert left == ([3, 4] if why == "late" else [1, 2])
    when = "before others began to record"
    if why == "full":
        when = "after the recordings of others were full"
    assert f"rank 1: waits for 2 signals {when} are dropped" in recorded.notes
    _is_good(replay(world.traces))
