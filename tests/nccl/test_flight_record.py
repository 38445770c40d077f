"""Proves the contents of the flight record: every operation in order with its arguments and state,
the last 512 of them, and a fingerprint that differs if ranks have called different collectives.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import wait_until
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_RECORDS = 512


def _facts(record: nccl.FlightRecord) -> tuple[object, ...]:
    return record.sequence, record.operation, record.dtype, record.count


def _call_all(rank: Rank) -> list[int]:
    comm, memory = rank.comm, rank.memory
    one, other = memory.put(np.ones(6, np.float32)), memory.put(np.ones(6, np.float32))
    both, out = memory.put(np.ones(12, np.float32)), memory.put(np.ones(12, np.float32))
    stream = rank.stream()
    began = time.monotonic()
    comm.all_reduce(one, nccl.MAX, stream=stream)
    comm.broadcast(one, 1, stream=stream)
    comm.reduce(one, 1, stream=stream)
    comm.all_gather(one, out=both, stream=stream)
    comm.reduce_scatter(both, out=one, stream=stream)
    comm.all_to_all(both, out=out, stream=stream)
    with nccl.group():
        comm.send(one, 1 - rank.rank, stream=stream)
        comm.recv(other, 1 - rank.rank, stream=stream)
    with nccl.plan() as step:
        comm.all_reduce(one, stream=stream)
    step()
    stream.synchronize()
    ended = time.monotonic()
    records = comm.flight_record()
    assert [_facts(record) for record in records] == [
        (1, "all_reduce", "float32", 6),
        (2, "broadcast", "float32", 6),
        (3, "reduce", "float32", 6),
        (4, "all_gather", "float32", 6),
        (5, "reduce_scatter", "float32", 6),
        (6, "all_to_all", "float32", 6),
        (7, "send", "float32", 6),
        (8, "recv", "float32", 6),
        (9, "all_reduce", "float32", 6),
    ]
    assert [record.root_or_peer for record in records[1:3]] == [1, 1]
    assert {record.root_or_peer for record in records[6:8]} == {1 - rank.rank}
    assert {record.stream for record in records} == {stream.handle}
    assert all(began - 0.05 <= record.issued <= ended for record in records)
    assert {record.state for record in records} <= {"issued", "done"}
    assert "all_reduce #1 (float32, count=6, max)" in repr(records[0])
    return [record.fingerprint for record in records]


def test_every_operation_is_recorded(launch: Launcher, provider: str) -> None:
    first, second = launch(2, _call_all, provider=provider)
    assert first == second
    assert first[5] == first[6] == first[7]  # messages are not part of it
    assert len(set(first)) == 7


def _fingerprint(calls: list[tuple[str, int, int]]) -> int:
    with nccl.Communicator.init_all(1, provider="host")[0] as comm:
        for name, count, dtype in calls:
            getattr(comm, name)(np.zeros(count, f"f{dtype}"), *([0] if name == "broadcast" else []))
        return comm.flight_record()[-1].fingerprint


def test_the_fingerprint_depends_on_kind_count_dtype_and_order() -> None:
    calls = [("all_reduce", 4, 4), ("broadcast", 4, 4), ("all_reduce", 8, 4)]
    same = [calls, list(calls)]
    other = [
        calls[::-1],
        [calls[0], calls[2], calls[1]],
        [calls[0], calls[0], calls[2]],
        [calls[0], calls[1], ("all_reduce", 9, 4)],
        [calls[0], calls[1], ("all_reduce", 8, 8)],
        [*calls, calls[0]],
    ]
    assert len({_fingerprint(one) for one in same}) == 1
    assert len({_fingerprint(one) for one in [calls, *other]}) == 1 + len(other)


def test_the_last_512_are_kept(comm: nccl.Communicator) -> None:
    array = np.zeros(1)
    for _ in range(3 * _RECORDS + 7):
        comm.all_reduce(array)
    records = comm.flight_record()
    assert [record.sequence for record in records] == list(
        range(2 * _RECORDS + 8, 3 * _RECORDS + 8)
    )
    comm.close()
    assert len(comm.flight_record()) == _RECORDS


def test_a_blocked_call_is_seen_from_another_thread(pair: list[nccl.Communicator]) -> None:
    thread = threading.Thread(target=pair[0].all_reduce, args=[np.ones(4)])
    thread.start()
    wait_until(pair[0].flight_record)
    assert pair[0].flight_record()[0].state == "called"
    pair[1].all_reduce(np.ones(4))
    thread.join()
    assert pair[0].flight_record()[0].state == "done"


def test_operations_before_a_returned_call_are_done(comm: nccl.Communicator) -> None:
    """On CPUs, where they run in order on any streams."""
    stream, array, blocked = nccl.Stream("host"), np.ones(4), threading.Event()

    def states() -> list[str]:
        return [record.state for record in comm.flight_record()]

    stream.launch(blocked.wait)
    for _ in range(3):
        comm.all_reduce(array, stream=stream)
    thread = threading.Thread(target=comm.all_reduce, args=[array])
    thread.start()
    wait_until(lambda: len(states()) == 4)
    assert states() == 3 * ["issued"] + ["called"]
    blocked.set()
    thread.join()
    assert states() == 4 * ["done"]
    blocked.clear()
    stream.launch(blocked.wait)
    comm.all_reduce(array, stream=stream)
    assert states() == [*(4 * ["done"]), "issued"]
    blocked.set()
    stream.synchronize()


def test_a_failed_call_is_recorded_as_failed(pair: list[nccl.Communicator]) -> None:
    pair[1].abort()
    with pytest.raises(nccl.NcclRemoteError):
        pair[0].all_reduce(np.ones(4))
    assert pair[0].flight_record()[0].state == "failed"
    with pytest.raises(TypeError):
        pair[0].all_reduce("no tensor")
    assert len(pair[0].flight_record()) == 1  # nothing was issued


def test_records_can_be_read_during_writes(comm: nccl.Communicator) -> None:
    stop = threading.Event()

    def write() -> None:
        counts = [np.zeros(n, np.uint8) for n in range(1, 50)]
        while not stop.is_set():
            for array in counts:
                comm.all_reduce(array)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(200):
        for record in comm.flight_record():
            assert record.operation == "all_reduce"
            assert record.count == (record.sequence - 1) % 49 + 1
    stop.set()
    thread.join()
