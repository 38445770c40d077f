"""Proves that traces contain the times of graph launches and, on request, of their operations."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np

from pynccl import nccl
from pynccl.tools.trace import chrome
from pynccl.tools.trace.exposure import exposed
from tests.support.rank import Rank
from tests.support.ranks import on_ranks
from tests.support.traces import traced_by

COUNT = 1000


@on_ranks(2, by="provider")
def test_ranges_in_captures_have_no_end(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    x = rank.memory.put(np.zeros(COUNT, np.float32))

    def run() -> None:
        with nccl.capture(stream) as graph, nccl.range("inside", stream=stream):
            comm.all_reduce(x)
        graph.launch(stream)
        stream.synchronize()

    began = time.monotonic()
    trace = traced_by(run)
    assert time.monotonic() - began < 20, "the end waited for events that were captured"
    (span,) = trace.ranges
    assert span.ended is None
    assert len(trace.launches) == 1


@on_ranks(2, by="provider")
def test_a_wait_that_joins_a_capture_keeps_it_valid(rank: Rank) -> None:
    """A stream joins the capture by the traced wait."""
    comm, stream, other = rank.comm, rank.stream(), rank.stream()
    event, back = rank.event(), rank.event()
    buffer = rank.memory.put(np.ones(4, np.float32))
    comm.all_reduce(buffer, stream=stream)
    stream.synchronize()

    def run() -> None:
        with nccl.capture(stream) as graph:
            event.record(stream)
            other.wait(event)
            time.sleep(0.3)  # the trace's thread queries its events
            comm.all_reduce(buffer, stream=other)
            back.record(other)
            stream.wait(back)
        graph.launch(stream)
        stream.synchronize()
        graph.close()

    assert len(traced_by(run).launches) == 1
    assert (rank.memory.get(buffer) == rank.nranks**2).all()


@on_ranks(2, by="provider")
def test_operations_in_graphs_have_times_on_request(rank: Rank) -> None:
    comm, stream, side = rank.comm, rank.stream(), rank.stream()
    x, y = (rank.memory.put(np.ones(COUNT, np.float32)) for _ in range(2))
    fork, join = rank.event(), rank.event()
    peer = 1 - rank.rank

    def run() -> None:
        with nccl.capture(stream) as graph:
            comm.all_reduce(x)
            fork.record(stream)
            side.wait(fork)
            with nccl.group():
                comm.send(x, peer, stream=side)
                comm.recv(y, peer, stream=side)
            join.record(side)
            stream.wait(join)
        for _ in range(3):
            graph.launch(stream)
            stream.synchronize()
        graph.close()

    with nccl.trace(graphs=True) as traced:
        run()
    trace = traced.process
    assert len(trace.operations) == 3
    assert all(o.began is None for o in trace.operations)
    assert len(trace.launches) == 3
    assert [(o.kind, o.sequence) for o in trace.runs] == 3 * [
        (o.kind, o.sequence) for o in trace.operations
    ]
    for number, launch in enumerate(trace.launches):
        reduce, send, recv = trace.runs[3 * number : 3 * number + 3]
        assert {o.graph for o in (reduce, send, recv)} == {launch.graph}
        assert {o.called for o in (reduce, send, recv)} == {launch.called}
        assert (send.began, send.ended) == (recv.began, recv.ended)
        inexact = 200_000  # of the times of events: docs/trace.md
        times = launch.began, reduce.began, reduce.ended, send.began, send.ended, launch.ended
        assert all(b - a > -inexact for a, b in itertools.pairwise(times))
        assert (reduce.stream, send.stream) == (stream.handle, side.handle)
    found = exposed(trace)
    assert found.launches == [None] * 3
    assert None not in found.runs
    (again,) = chrome.parse(json.dumps(chrome.document(trace)))
    assert again == trace


@on_ranks(2, by="provider")
def test_times_are_those_of_launches_that_were_done(rank: Rank) -> None:
    comm, stream = rank.comm, rank.stream()
    x = rank.memory.put(np.ones(1 << 18, np.float32))
    with nccl.trace(graphs=True) as traced:
        with nccl.capture(stream) as graph:
            comm.all_reduce(x)
        for _ in range(20):
            graph.launch(stream)
    assert len(traced.process.launches) == 20
    for run in traced.process.runs:
        (launch,) = [one for one in traced.process.launches if one.called == run.called]
        assert run.began > launch.began - 200_000
    last = traced.process.launches[-1].called
    assert [run.called for run in traced.process.runs][-1] == last
    stream.synchronize()
    graph.close()
    assert 1 <= len(traced.process.runs) <= 20
