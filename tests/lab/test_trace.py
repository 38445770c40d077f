"""Proves that a trace of a DDP step over 4 ranks has the exposed time that the lab measures."""

from __future__ import annotations

import numpy as np
import pytest

from pynccl import nccl
from pynccl.tools import lab
from pynccl.tools.trace.exposure import RANGES, exposed
from tests.support.launcher import Launcher
from tests.support.rank import Rank

pytestmark = pytest.mark.serial  # it is judged by times

_LAYER, _BUCKET = 0.06, 0.08  # seconds to compute a layer, and to sum its bucket
_LAYERS = 2
_RANKS = 4
_TRIES = 15  # a busy machine can delay a sleep
# A bucket takes longer than a layer: what is left of the buckets after the last layer.
_EXPOSED = _LAYER + _LAYERS * _BUCKET - _LAYERS * _LAYER


def _step(rank: Rank) -> tuple[float, float, str]:
    """The exposed seconds by the lab and by the trace of rank 0, with the trace's definition."""
    gradients = np.ones((_LAYERS, 1024), np.float32)
    ready = [rank.event() for _ in range(_LAYERS)]

    def compute(stream: nccl.Stream) -> None:
        for event in ready:
            lab.Sleep(_LAYER)(stream)
            event.record(stream)

    def communicate(stream: nccl.Stream) -> None:
        for event, bucket in zip(ready, gradients, strict=True):
            stream.wait(event)
            if rank.rank == rank.nranks - 1:  # the others are in the all_reduce meanwhile
                lab.Sleep(_BUCKET)(stream)
            rank.comm.all_reduce(bucket, nccl.MAX, stream=stream)

    row = lab.overlap(compute, communicate, comm=rank.comm, repeats=3, warmup=1, evidence=False)
    streams = rank.stream(), rank.stream()
    rank.comm.barrier()
    with nccl.trace() as trace:
        with nccl.range("backward", compute=True, stream=streams[0]):
            compute(streams[0])
        communicate(streams[1])
        for stream in streams:
            stream.synchronize()
    assert trace.process is not None
    found = exposed(trace.process)
    return row.exposed, found.total * 1e-9, found.definition


def test_the_exposed_time_of_a_trace_is_that_of_the_lab(launch: Launcher) -> None:
    for _ in range(_TRIES):
        by_lab, by_trace, definition = launch(_RANKS, _step)[0]
        assert definition == RANGES
        if by_trace == pytest.approx(by_lab, rel=0.03) and by_lab == pytest.approx(
            _EXPOSED, rel=0.05
        ):
            break
    assert by_trace == pytest.approx(by_lab, rel=0.03)
    assert by_lab == pytest.approx(_EXPOSED, rel=0.05)
