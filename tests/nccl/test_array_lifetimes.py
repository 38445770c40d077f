"""Proves that arrays live as long as an operation uses their memory: until it is done, the stream
has run it, or its plan or graph is gone, even if the caller drops its references at once.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from pynccl import nccl
from tests.support.blocking import wait_until
from tests.support.rank import Rank
from tests.support.ranks import on_ranks


class _Copy:
    """Exports a new copy of its values at each call, which only the capsule references."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.given: list[weakref.ref[np.ndarray]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, stream: object = None) -> object:
        copy = self._values.copy()
        self.given.append(weakref.ref(copy))
        return copy.__dlpack__()

    def alive(self) -> bool:
        return self.given[-1]() is not None


def test_owners_live_until_the_operation_is_done(comm: nccl.Communicator) -> None:
    values, out = np.arange(4.0), np.zeros(4)
    source = _Copy(values)
    comm.all_reduce(source, out=out)
    assert not source.alive()
    np.testing.assert_array_equal(out, values)
    with nccl.group():
        out[:] = 0
        comm.all_reduce(source, out=out)
        assert source.alive()
    np.testing.assert_array_equal(out, values)
    assert not source.alive()
    with nccl.plan() as plan:
        comm.all_reduce(source, out=out)
    for _ in range(2):
        out[:] = 0
        plan()
        np.testing.assert_array_equal(out, values)
        assert source.alive()
    plan.close()
    assert not source.alive()
    op = comm.pre_mul_sum(_Copy(np.array([2.0])), "float64")
    comm.all_reduce(values, op, out=out)
    np.testing.assert_array_equal(out, 2 * values)


def test_owners_live_as_long_as_the_graph(comm: nccl.Communicator) -> None:
    values, out = np.arange(4.0), np.zeros(4)
    source = _Copy(values)
    stream = nccl.Stream("host")
    with nccl.capture(stream) as graph:
        comm.all_reduce(source, out=out, stream=stream)
    assert source.alive()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(out, values)
    graph.close()


def test_owners_live_until_the_stream_has_run_the_operation(comm: nccl.Communicator) -> None:
    values, out = np.arange(4.0), np.zeros(4)
    stream, begin = nccl.Stream("host"), threading.Event()
    for grouped in (False, True):
        source = _Copy(values)
        begin.clear()
        out[:] = 0
        stream.launch(begin.wait)
        with nccl.group() if grouped else contextlib.nullcontext():
            comm.all_reduce(source, out=out, stream=stream)
        held = source.alive()
        begin.set()
        stream.synchronize()
        assert held
        np.testing.assert_array_equal(out, values)
        # The next operation with a capsule releases those that are done.
        comm.all_reduce(_Copy(values), out=out, stream=stream)
        stream.synchronize()
        assert not source.alive()


@on_ranks(2, timeout=30)
def test_arrays_live_until_the_stream_has_run_the_operation(rank: Rank) -> None:
    """The caller drops its references at once, and reuses the memory."""
    comm, ones, stream, begin = rank.comm, np.ones(1000), nccl.Stream("host"), threading.Event()
    out = np.zeros(1000)
    with nccl.plan() as plan:
        comm.all_reduce(ones + 4, out=out, stream=stream)
    calls: list[tuple[float, Callable[[], object]]] = [
        (2, lambda: comm.all_reduce(ones + 1, out=out, stream=stream)),
        (3, lambda: comm.broadcast(ones + 2, 0, out=out, stream=stream)),
    ]

    def in_group() -> None:
        with nccl.group():
            comm.all_reduce(ones + 3, out=out, stream=stream)

    calls += [(4, in_group), (5, plan)]
    for value, call in calls:
        begin.clear()
        stream.launch(begin.wait)
        call()
        if call is plan:
            plan.close()
        overwritten = [np.zeros(1000) for _ in range(10)]
        begin.set()
        stream.synchronize()
        expected = value if value == 3 else comm.nranks * value
        np.testing.assert_array_equal(out, expected)
        del overwritten


@on_ranks(2, timeout=30, ids=2)
def test_arrays_live_after_a_group_that_was_issued_in_part(rank: Rank) -> None:
    comm, stream, begin, out = rank.comm, nccl.Stream("host"), threading.Event(), np.zeros(1000)
    other, ones = rank.communicator(1), np.ones(1000)

    def issue() -> None:
        with nccl.group():
            comm.all_reduce(ones + 1, out=out, stream=stream)
            other.all_reduce(np.ones(3 + rank.rank))

    stream.launch(begin.wait)
    with pytest.raises(nccl.NcclError, match="make different calls"):
        issue()
    overwritten = [np.zeros(1000) for _ in range(10)]
    begin.set()
    stream.synchronize()
    assert (out == 4).all()
    del overwritten


def test_arrays_are_released_when_the_stream_has_run_the_operation(
    comm: nccl.Communicator,
) -> None:
    stream, begin, array = nccl.Stream("host"), threading.Event(), np.ones(4)
    reference = weakref.ref(array)
    stream.launch(begin.wait)
    comm.all_reduce(array, stream=stream)
    del array
    assert reference() is not None
    begin.set()
    stream.synchronize()
    wait_until(lambda: reference() is None)
