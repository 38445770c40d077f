"""Proves that a simulated group runs nothing and returns an estimate that grows with the bytes and
the operations, and that ncclGroupSimulateEnd ends groups like NCCL's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


@on_ranks(2, by="provider")
def test_time_grows_with_bytes(rank: Rank) -> None:
    """All ranks simulate, since NCCL may connect them for a new algorithm."""
    memory, comm = rank.memory, rank.comm
    times: list[float] = []
    for count in (1, 1000, 1_000_000, 8_000_000):
        buffer = memory.put(np.full(count, 3, np.float32))
        with nccl.simulate() as simulation:
            assert simulation.estimated_time is None
            comm.all_reduce(buffer)
        assert simulation.estimated_time is not None
        times.append(simulation.estimated_time)
        assert (memory.get(buffer) == 3).all()
    assert comm.flight_record() == []  # nothing was issued
    x = memory.put(np.ones(10, np.float32))
    comm.all_reduce(x)
    assert (memory.get(x) == rank.nranks).all()
    assert [record.number for record in comm.flight_record()] == [1]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 60  # seconds


@pytest.fixture
def comms() -> Iterator[list[nccl.Communicator]]:
    made = nccl.Communicator.init_all(3, provider="host")
    yield made
    for comm in made:
        comm.close()


def _time(*calls: tuple[nccl.Communicator, str, int]) -> float:
    with nccl.simulate() as simulation:
        for comm, name, count in calls:
            root = {"root": 1} if name in ("broadcast", "reduce") else {}
            getattr(comm, name)(np.zeros(count, np.uint8), **root)
    assert simulation.estimated_time is not None
    return simulation.estimated_time


@pytest.mark.parametrize(
    "name",
    ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"],
)
def test_every_collective_has_an_estimate(comms: list[nccl.Communicator], name: str) -> None:
    times = [_time((comms[0], name, 3 * count)) for count in (1, 10_000, 100_000_000)]
    assert 0 < times[0] < times[1] < times[2]
    again = _time((comms[0], name, 30_000))
    assert again == times[1]
    both = _time((comms[0], name, 30_000), (comms[0], name, 30_000))
    assert both == pytest.approx(2 * again)


def test_the_bytes_of_the_estimate(comms: list[nccl.Communicator]) -> None:
    def added(name: str, count: int) -> float:
        """Seconds that twice the bytes add."""
        return _time((comms[0], name, 2 * count)) - _time((comms[0], name, count))

    # A broadcast reads and writes each byte once. In an all-reduce, each rank reads the slices of
    # all, writes one and copies the others. In an all-gather, each of the three ranks writes a
    # third and reads all. In a reduction, it writes a tensor and reads three, or a third of each.
    names = ("broadcast", "all_reduce", "all_gather", "reduce", "reduce_scatter")
    within_caches = {name: added(name, 30_000) for name in names}
    ratios = [seconds / within_caches["broadcast"] for seconds in within_caches.values()]
    assert ratios == pytest.approx([1, 1.5, 2 / 3, 2, 1])
    # Beyond the caches a byte takes longer.
    assert added("all_reduce", 50_000_000) > 1000 * within_caches["all_reduce"]


def test_the_estimate_grows_with_the_ranks(
    comms: list[nccl.Communicator], pair: list[nccl.Communicator]
) -> None:
    assert _time((comms[0], "all_reduce", 1)) > 1.2 * _time((pair[0], "all_reduce", 1))


def test_the_estimate_grows_with_fewer_cpus(pair: list[nccl.Communicator]) -> None:
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    on_all = _time((pair[0], "all_reduce", 1))
    os.sched_setaffinity(0, {min(cpus)})
    try:
        on_one = _time((pair[0], "all_reduce", 1))
    finally:
        os.sched_setaffinity(0, cpus)
    assert on_one > 1.5 * on_all


@on_ranks(2, by="provider", ids=2)
def test_operations_that_nccl_would_run_are_refused(rank: Rank) -> None:
    """NCCL sends the messages of a simulated group with the next group."""
    gpu.require(rank.provider, "ncclGroupSimulateEnd")
    memory, comm = rank.memory, rank.comm
    x, y = memory.put(np.ones(4, np.float32)), memory.put(np.zeros(4, np.float32))
    peer = 1 - rank.rank
    calls: list[Callable[[], object]] = [
        lambda: comm.send(x, peer),
        lambda: comm.recv(y, peer),
        lambda: comm.all_to_all(x, out=y),
        lambda: comm.gather(x, root=0),
        lambda: comm.scatter(x, root=rank.rank),
    ]
    for call in calls:
        text = "operation 1 of 1 consists of messages"
        with pytest.raises(ValueError, match=text), nccl.simulate():
            call()
    free = rank.communicator(1, config=nccl.Config(blocking=0))
    free.wait_ready(20)
    with pytest.raises(ValueError, match="operation 1 of 1 is non-blocking"), nccl.simulate():
        free.all_reduce(x)
    free.abort()
    comm.all_reduce(x)
    assert (memory.get(x) == 2).all()
    assert not memory.get(y).any()


@on_ranks(1, by="provider")
def test_one_rank_and_an_empty_group_take_no_time(rank: Rank) -> None:
    gpu.require(rank.provider, "ncclGroupSimulateEnd")
    comm, x, y = rank.comm, rank.memory.put(np.ones(4)), rank.memory.put(np.zeros(4))
    with nccl.simulate() as simulation:
        comm.all_reduce(x, out=y)
    assert simulation.estimated_time == 0.0
    assert not rank.memory.get(y).any()
    with nccl.simulate() as empty, nccl.group():
        pass
    assert empty.estimated_time == 0.0


def test_mistakes_send_nothing(comms: list[nccl.Communicator]) -> None:
    simulation = nccl.simulate()
    with pytest.raises(TypeError, match="tensor: "), simulation:
        comms[0].all_reduce("no buffer")
    assert simulation.estimated_time is None
    with simulation, nccl.group():  # it can be used again
        comms[0].all_reduce(np.ones(4))
    assert simulation.estimated_time is not None
    with pytest.raises(TypeError, match="tensor: "), simulation:
        comms[0].all_reduce("no buffer")
    assert simulation.estimated_time is None
    for what, outer, inner in (
        ("simulate", nccl.group(), simulation),
        ("plan", simulation, nccl.plan()),
    ):
        with pytest.raises(RuntimeError, match=f"{what}: it cannot begin inside"), outer, inner:
            pass
    message = "simulate: a communicator cannot be created or changed inside"
    with pytest.raises(RuntimeError, match=message), simulation:
        comms[0].split(0)
    comms[1].close()
    with pytest.raises(ValueError, match="communicator: it is closed"), simulation:
        comms[1].all_reduce(np.ones(4))
    with nccl.group():
        nccl.Communicator(1, nccl.get_unique_id("host"), 0, provider="host")


def test_nested_groups(provider: str) -> None:
    """Neither inner nor empty groups have an estimate. tests/rules tests the other rules."""
    library, info = gpu.require(provider, "ncclGroupSimulateEnd"), raw.ncclSimInfo_t()
    for _ in range(3):
        library.ncclGroupStart()
    for _ in range(3):
        assert library.ncclGroupSimulateEnd(info).estimatedTime == -1
    with pytest.raises(nccl.NcclInvalidUsageError):
        library.ncclGroupEnd()


def test_a_group_that_creates_communicators_is_refused() -> None:
    lib = raw.load("host")
    lib.ncclGroupStart()
    lib.ncclCommInitRank(1, lib.ncclGetUniqueId(), 0)
    with pytest.raises(nccl.NcclInvalidUsageError, match="initializes communicators"):
        lib.ncclGroupSimulateEnd(raw.ncclSimInfo_t())
    lib.ncclGroupStart()
    lib.ncclGroupEnd()
